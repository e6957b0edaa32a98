"""The coordinator: its loop, and one file for each of its tasks."""
