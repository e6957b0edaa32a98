"""Comparisons, each of them one file; `scripts/measure/__init__.py` describes how to write one."""
