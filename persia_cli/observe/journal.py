"""Files that grow by one JSON object a line: `metrics.jsonl` and `events.jsonl` of a run directory."""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"


class Journal:
    """Appends objects to a file, each line written at once so that a reader never sees half a one it cannot detect."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, **fields: Any) -> None:
        """Append one object; `time` (seconds since 1970) comes first, figures that are not finite become null."""
        line = {"time": round(time.time(), 6)} | {key: _plain(value) for key, value in fields.items()}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


class Tail:
    """Reads a journal that another process is writing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of the lines completed since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield json.loads(line)


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return all objects of a journal; a missing file has none."""
    return list(Tail(path).new())
