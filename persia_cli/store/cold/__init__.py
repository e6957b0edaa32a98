"""The cold tier: rows that left memory, in a log on a disk."""
