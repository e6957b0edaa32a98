"""A job plan becomes threads or processes."""
