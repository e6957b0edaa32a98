"""Drills: a job is disturbed on purpose, and what that cost is counted."""
