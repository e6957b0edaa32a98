"""The functions of `persia checkpoint`: list, describe, verify, compare, export and remove checkpoints."""
