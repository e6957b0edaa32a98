"""Jobs as functions with typed results: plan, run, submit, follow and stop one, and what came of it.

The command line and the Python API call these. They print nothing: what happens while they work goes to a `Reporter`.
"""
