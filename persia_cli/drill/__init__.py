"""Drills: kill processes of a job on purpose, and measure the cost of the recovery."""
