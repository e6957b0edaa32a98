"""The comparisons that have been made, as lines of a file: a later call continues from these."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from scripts.rival.settings import Settings

JobMetrics = dict[str, float]


class Comparison(NamedTuple):
    """The settings of a training, and the metrics of each side."""

    data: str
    mode: str
    settings: Settings
    sides: dict[str, JobMetrics]


class Record:
    """Comparisons, each written to a file at once; without a file they are kept in memory alone."""

    def __init__(self, file: Path | None) -> None:
        """Read the comparisons of `file`, if it is there. Exits for a line that is none."""
        self._file = file
        self._made: list[Comparison] = []
        for number, line in enumerate(file.read_text().splitlines() if file and file.exists() else [], 1):
            try:
                words: dict[str, Any] = json.loads(line)
                self._made.append(Comparison(**words | {"settings": Settings(**words["settings"])}))
            except (ValueError, TypeError, KeyError) as error:
                raise SystemExit(f"{file}, line {number} is no comparison of this script: {error}") from error

    def find(self, data: str, mode: str, settings: Settings) -> Comparison | None:
        """Return the comparison of exactly these settings."""
        return next((each for each in self._made if each[:3] == (data, mode, settings)), None)

    def add(self, made: Comparison) -> None:
        """Keep a comparison."""
        self._made.append(made)
        if self._file:
            with self._file.open("a") as out:
                out.write(json.dumps(made._replace(settings=made.settings.words())._asdict()) + "\n")
