"""Criteo's text format (label, I1-I13, C1-C26, tab-separated) to Parquet."""

from pathlib import Path
from typing import Any

import numpy as np

from persia_cli.data.prepare.parts import text_parts
from persia_cli.data.prepare.recipe import (
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
DATASET = {
    "labels": ["label"],
    "dense": DENSE,
    "sparse": SPARSE,
    "raw": RAW,
    "split": {"kind": "every", "n": 5, "offset": 4},
}


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Prepare train.txt, plain or .gz, or a folder of such files; raises DataError."""
    files = source_files(source, "give the unpacked train.txt")
    parts = [part for file in files for part in text_parts(file, FORMAT, _table)]
    return write_dataset(parts, DATASET, output, options, progress)


def _table(block: TextBlock) -> Any:
    """Return the rows of a block: counts as their logarithm, categories unchanged."""
    label = block.integers("label")
    block.reject((label < 0) | (label > 1), "the label is neither 0 nor 1")
    return block.table({"label": label.astype(np.int8)} | block.made(RAW))
