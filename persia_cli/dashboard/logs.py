"""Search in the logs of a run: its events, and the output of each process."""

import json
import time
from pathlib import Path
from typing import Any

from persia_cli.errors import UserError
from persia_cli.observe.journal import EVENTS

ROLES = "roles"
MAX_BYTES = 16 << 20
"""Bytes at the end of each log that are searched."""
MAX_LINES = 500
NUMBERS = ("reliability", "roles", "tables")
"""Events that the page shows as pictures and tables."""


def log_files(run_dir: Path) -> list[str]:
    """Return the names of the logs of a run."""
    return [EVENTS, *sorted(path.name for path in (run_dir / ROLES).glob("*.log"))]


def search(run_dir: Path, name: str, text: str) -> dict[str, Any]:
    """Return the last lines of a log that contain a text in any case; raises UserError if the run has no such log."""
    files = log_files(run_dir)
    if name not in files:
        raise UserError(f"the run has no log {name}")
    path = (run_dir / name if name == EVENTS else run_dir / ROLES / name).resolve()
    if not path.is_relative_to(run_dir):
        raise UserError(f"{name} is a link to a file that is not in the run directory")
    lines = _end_of(path)
    if name == EVENTS:
        lines = [event for line in lines if (event := _in_words(line))]
    wanted = text.casefold()
    found = [line for line in lines if wanted in line.casefold()]
    return {"files": files, "lines": found[-MAX_LINES:], "found": len(found)}


def _end_of(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_BYTES))
            return file.read(MAX_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []


def _in_words(line: str) -> str | None:
    """Return an event as its time, its kind and its keys, a damaged line unchanged; None for one of numbers alone."""
    try:
        event = json.loads(line)
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.pop("time")))
        kind = event.pop("event")
        return None if kind in NUMBERS else f"{clock} {kind} " + " ".join(f"{k}={v}" for k, v in event.items())
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError):
        return line
