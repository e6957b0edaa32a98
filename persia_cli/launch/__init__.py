"""The launch of a job plan as threads or processes."""
