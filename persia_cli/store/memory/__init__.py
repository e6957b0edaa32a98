"""Embedding tables in memory that outlives the process."""
