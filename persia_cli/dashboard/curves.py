"""New lines of metrics since a position in their file, as columns of numbers."""

import zlib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from persia_cli.errors import UserError
from persia_cli.observe.journal import METRICS, object_of, reading

HEAD_BYTES = 26
"""Bytes at the begin of a journal that are unlike those of any other: its first line starts with a time."""
TRAIN = b'"split": "train"'
MAX_POINTS = 3000
"""Maximum number of points of a curve; the runs of a page share it."""
WINDOW = "window_"
"""Prefix of metrics of training over the last lines, which curves show instead of those over all lines so far."""

Columns = dict[str, dict[str, list[float | None]]]
"""Values by split and key; all columns of a split have the same length."""


def new_curves(run_dir: Path, since: str, most: int) -> tuple[Columns, bool, str]:
    """Return the columns after a position, True if they are all, and the position after them.

    A position is `FILE-OFFSET`, with a checksum of the begin of the file; in another file all lines are new.
    """
    try:
        with reading(run_dir / METRICS) as file:
            head, size = file.read(HEAD_BYTES), file.seek(0, 2)
            name, (known, _, offset) = f"{zlib.crc32(head):08x}", since.partition("-")
            is_place = known == name and offset.isdecimal() and len(offset) < 19 and int(offset) <= size
            begin = file.seek(int(offset) if is_place else 0)
            data = file.read(size - begin)
    except (OSError, UserError):
        return {}, True, ""
    end = data.rfind(b"\n") + 1
    return _columns(data[:end], most), not begin, f"{name}-{begin + end}" if size >= HEAD_BYTES else ""


def _columns(data: bytes, most: int) -> Columns:
    """Return the numbers in lines, of many only every n-th; damaged lines are left out."""
    lines = data.split(b"\n")[:-1]
    kinds = [line for line in lines if TRAIN in line], [line for line in lines if TRAIN not in line]
    by_split: dict[str, list[dict[str, Any]]] = {}
    for line in chain.from_iterable(thinned(kind, most) for kind in kinds):
        found = object_of(line) or {}
        if isinstance(found.get("split"), str) and isinstance(found.get("step"), int):
            by_split.setdefault(found["split"], []).append(_numbers(found))
    return {
        split: {key: [found.get(key) for found in rows] for key in dict.fromkeys(chain(*rows))}
        for split, rows in by_split.items()
    }


def thinned(lines: Sequence[bytes], most: int) -> Sequence[bytes]:
    """Return every n-th line and the last one, so that about `most` are left."""
    every = -(-len(lines) // most) or 1
    return [*lines[:-1][::every], *lines[-1:]]


def _numbers(found: dict[str, Any]) -> dict[str, float]:
    numbers = {key: value for key, value in found.items() if type(value) in (int, float)}
    recent = {key.removeprefix(WINDOW): value for key, value in numbers.items() if key.startswith(WINDOW)}
    return {key: value for key, value in numbers.items() if not key.startswith(WINDOW)} | recent
