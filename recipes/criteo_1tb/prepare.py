"""The Criteo 1TB click logs, one file for each of 24 days (label, I1-I13, C1-C26, tab-separated), to Parquet."""

from pathlib import Path
from typing import Any

import numpy as np

from persia_cli.data.prepare.parts import text_parts
from persia_cli.data.prepare.recipe import (
    DataError,
    PrepareOptions,
    PrepareReport,
    Progress,
    declared,
    kinds_of,
    source_files,
    write_dataset,
)
from persia_cli.data.prepare.text import TextBlock, TextFormat
from persia_cli.data.read.kinds import INTEGER

DENSE = [f"I{number}" for number in range(1, 14)]
SPARSE = [f"C{number}" for number in range(1, 27)]
RAW = declared(
    {"columns": DENSE, "read": "integer", "missing": 0, "steps": [{"at_least": 0}, "float32", "log1p"]},
    {"columns": SPARSE, "read": "hexadecimal", "digits": 8},
)
FORMAT = TextFormat({"label": INTEGER} | kinds_of(RAW))


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Prepare a folder of day_0 to day_23, plain or .gz, or some of them; the last day evaluates. Raises DataError."""
    files = source_files(source, "give the folder of day_0.gz to day_23.gz")
    parts = [part for file in files for part in text_parts(file, FORMAT, _table)]
    dataset = {"labels": ["label"], "dense": DENSE, "sparse": SPARSE, "raw": RAW, "split": _split(files)}
    return write_dataset(parts, dataset, output, options, progress)


def _split(files: list[Path]) -> dict[str, Any]:
    """Return the split by day; a single day is split by row. Raises DataError for a day without rows."""
    for file in files:
        if not file.stat().st_size:
            raise DataError(f"{file} is empty; download this day again, or remove it from the folder")
    *train, last = [f"{file.name.split('.')[0]}-*.parquet" for file in files]
    if not train:
        return {"kind": "every", "n": 5, "offset": 4}
    return {"kind": "files", "train": train, "eval": [last]}


def _table(block: TextBlock) -> Any:
    """Return the rows of a block: counts as their logarithm, categories unchanged."""
    label = block.integers("label")
    block.reject((label < 0) | (label > 1), "the label is neither 0 nor 1")
    return block.table({"label": label.astype(np.int8)} | block.made(RAW))
