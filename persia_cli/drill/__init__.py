"""Drills: processes of a job are killed on purpose, and what that costs is measured."""
