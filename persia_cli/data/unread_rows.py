"""Rows of text files that could not be read: their number, and the lines of the first ones."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice

SHOWN = 5
_LONGEST = 60


@dataclass(slots=True)
class UnreadRows:
    """Rows left out of a file; `lines` and `reasons` describe the first few."""

    count: int = 0
    lines: list[int] = field(default_factory=list)
    """The line of the file on which each begins, counted from 1."""
    reasons: list[str] = field(default_factory=list)

    def add(self, line: int, reason: str, text: str) -> None:
        """Count a row; where `line` is the number of the row instead, `name_lines` replaces it later."""
        self.count += 1
        if len(self.lines) < SHOWN:
            shown = " ".join(text.split())
            shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
            self.lines.append(line)
            self.reasons.append(f"{reason}: {shown}")

    def name_lines(self, lines: Iterable[int]) -> None:
        """Replace row numbers by line numbers; `lines` holds the line of each row of the file, from the first."""
        numbers = sorted(set(self.lines))
        each = iter(lines)
        found = {}
        for before, number in zip([0, *numbers], numbers, strict=False):
            found[number] = next(islice(each, number - before - 1, None), number)
        self.lines = [found[number] for number in self.lines]

    @property
    def first(self) -> list[str]:
        """A sentence for each of the first few rows."""
        return [f"line {line}: {reason}" for line, reason in zip(self.lines, self.reasons, strict=True)]

    def to_json(self) -> bytes:
        """Encode for a file's metadata."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "UnreadRows":
        """Decode the bytes of `to_json`."""
        return cls(**json.loads(text))
