"""New lines of a journal since a position in it, and their numbers as columns."""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

HEAD_BYTES = 26
"""Bytes at the begin of a journal that are unlike those of any other: its first line starts with a time."""
TRAIN = b'"split": "train"'
WINDOW = "window_"
"""Prefix of metrics of training over the last lines, which curves show instead of those over all lines so far."""

Columns = dict[str, dict[str, list[float | None]]]
"""Values by split and key; all columns of a split have the same length."""

_DECODER = msgspec.json.Decoder()


class Position(NamedTuple):
    """A position between two lines of a journal."""

    file: str = ""
    """Checksum of the begin of the file, which another file of the same path does not have."""
    offset: int = 0

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Return the position that was written as a text; the begin of any file for another text."""
        file, _, offset = text.partition("-")
        return cls(file, int(offset)) if offset.isdecimal() and len(offset) < 19 else cls()

    def __str__(self) -> str:
        """Return the text for `parse`."""
        return f"{self.file}-{self.offset}"


def read_new(path: Path, since: Position) -> tuple[bytes, Position]:
    """Return the complete lines after a position and the position after them; all lines if the file is another one.

    A missing file has no lines.
    """
    try:
        with path.open("rb") as file:
            head, size = file.read(HEAD_BYTES), file.seek(0, 2)
            if len(head) < HEAD_BYTES:
                return b"", Position()
            name = f"{zlib.crc32(head):08x}"
            begin = since.offset if since.file == name and since.offset <= size else 0
            file.seek(begin)
            data = file.read(size - begin)
    except OSError:
        return b"", Position()
    end = data.rfind(b"\n") + 1
    return data[:end], Position(name, begin + end)


def objects(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects in lines; those that are damaged are left out."""
    for line in lines:
        try:
            found = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(found, dict):
            yield found


def lines_with(data: bytes, *parts: bytes) -> list[bytes]:
    """Return the lines that contain one of the parts, in order, without looking at each line."""
    begins: set[int] = set()
    for part in parts:
        at = data.find(part)
        while at >= 0:
            begins.add(data.rfind(b"\n", 0, at) + 1)
            at = data.find(part, at + len(part))
    return [data[begin : data.index(b"\n", begin)] for begin in sorted(begins)]


def columns(data: bytes, most: int) -> Columns:
    """Return the numbers in lines of metrics; of many lines only every n-th, and at most about `most` of a kind."""
    lines = data.split(b"\n")[:-1]
    training = _thinned([line for line in lines if TRAIN in line], most)
    others = _thinned([line for line in lines if TRAIN not in line], most)
    by_split: dict[str, list[dict[str, Any]]] = {}
    for found in objects([*training, *others]):
        if isinstance(found.get("split"), str) and isinstance(found.get("step"), int):
            by_split.setdefault(found["split"], []).append(_numbers(found))
    return {
        split: {key: [found.get(key) for found in rows] for key in dict.fromkeys(key for row in rows for key in row)}
        for split, rows in by_split.items()
    }


def _thinned(lines: Sequence[bytes], most: int) -> Sequence[bytes]:
    every = -(-len(lines) // most) or 1
    return [*lines[:-1][::every], *lines[-1:]]


def _numbers(found: dict[str, Any]) -> dict[str, float | None]:
    numbers = {key: value for key, value in found.items() if type(value) in (int, float)}
    recent = {key.removeprefix(WINDOW): value for key, value in numbers.items() if key.startswith(WINDOW)}
    return {key: value for key, value in numbers.items() if not key.startswith(WINDOW)} | recent
