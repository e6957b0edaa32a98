"""A finished data set, and the record of its sources."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from persia_cli.data.bad_rows import BadRow
from persia_cli.data.dataset_yaml import NAME
from persia_cli.data.prepare_options import PrepareReport
from persia_cli.errors import DataError

RECORD = "preparation.json"
"""File that records the sources of a data set."""


@dataclass(frozen=True)
class _Record:
    """The contents of the file."""

    made_of: dict[str, str]
    """Fingerprint of each part."""
    rows: int
    nbytes: int
    files: list[str]
    bad_rows: int
    first_bad_rows: list[dict[str, Any]]


def to_record(report: PrepareReport, made_of: dict[str, str]) -> str:
    """Return the file's text; `made_of` holds the fingerprint of each part by name."""
    first = [asdict(row) for row in report.first_bad_rows]
    names = [file.name for file in report.files]
    record = _Record(made_of, report.rows, report.nbytes, names, report.bad_rows, first)
    return json.dumps(asdict(record), indent=1) + "\n"


def find_finished(output: Path, made_of: dict[str, str], allowed_bad_rows: int) -> PrepareReport | None:
    """Return the report of the finished data set in `output` if it was made from the same sources, else None."""
    try:
        record = _Record(**json.loads((output / RECORD).read_text(encoding="utf-8")))
        first = tuple(BadRow(**row) for row in record.first_bad_rows)
    except (OSError, ValueError, TypeError):
        return None
    files = tuple(output / name for name in record.files)
    is_whole = all(file.is_file() for file in (output / NAME, *files))
    if record.made_of != made_of or not is_whole:
        return None
    if record.bad_rows > allowed_bad_rows:
        raise DataError(
            f"{output} was made without {record.bad_rows} rows that do not parse, and {allowed_bad_rows} may fail; "
            "give a higher --max-bad-rows, or correct the source and remove the folder"
        )
    return PrepareReport(record.rows, files, record.nbytes, record.bad_rows, first, output / NAME, kept=len(files))
