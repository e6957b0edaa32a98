"""The logging of a role: one line per event, with the replica's name."""

import logging
import sys


def log_to_stderr(name: str) -> None:
    """Write all log records of this process to stderr, each line with the replica's name."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s {name} %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
