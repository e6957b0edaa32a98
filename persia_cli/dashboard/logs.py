"""Search in the logs of a run: its events, and the output of each process."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from persia_cli.dashboard.folder import Folder
from persia_cli.disk import open_regular
from persia_cli.errors import UserError
from persia_cli.observe.journal import EVENTS

ROLES = "roles"
MAX_BYTES = 16 << 20
"""Bytes at the end of each log that are searched."""
MAX_LINES = 500
NUMBERS = ("reliability", "roles", "tables")
"""Events that the page shows as pictures and tables."""


def search(folder: Folder, run: str, name: str, text: str) -> dict[str, Any]:
    """Return the last lines of a log that contain a text in any case; raises UserError if the run has no such log."""
    path = folder.run(run)
    files = {EVENTS: path / EVENTS, **{each.name: each for each in sorted((path / ROLES).glob("*.log"))}}
    if name not in files or not Path(os.path.realpath(files[name])).is_relative_to(path):
        raise UserError(f"the run has no log {name}")
    lines = [line.decode(errors="replace") for line in last_lines(files[name], MAX_BYTES)]
    if name == EVENTS:
        lines = [event for line in lines if (event := _in_words(line))]
    found = [line for line in lines if text.casefold() in line.casefold()]
    return {"files": list(files), "lines": found[-MAX_LINES:], "found": len(found)}


def last_lines(path: Path, most: int) -> list[bytes]:
    """Return the lines in the last bytes of a file, of which the last may be half a line; none if it cannot be read."""
    try:
        with open_regular(path, sys.maxsize) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            lines = file.read(most).split(b"\n")
    except OSError:
        return []
    return [line for line in lines[size > most :] if line]


def _in_words(line: str) -> str | None:
    """Return an event as its time, its kind and its keys, a damaged line unchanged; None for one of numbers alone."""
    try:
        event = json.loads(line)
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.pop("time")))
        kind = event.pop("event")
        return (
            None
            if kind in NUMBERS
            else f"{clock} {kind} " + " ".join(f"{k}={v}" for k, v in event.items() if k != "reliability")
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError, RecursionError):
        return line
