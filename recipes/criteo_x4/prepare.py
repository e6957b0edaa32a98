"""Criteo_x4, Criteo's challenge in the split of a leaderboard (train.csv, valid.csv, test.csv), to Parquet."""

from pathlib import Path
from typing import Any

import numpy as np

from persia_cli.data.prepare.parts import text_parts
from persia_cli.data.prepare.recipe import (
    PrepareOptions,
    PrepareReport,
    Progress,
    declared,
    find_file,
    kinds_of,
    write_dataset,
)
from persia_cli.data.prepare.text import TextBlock, TextFormat
from persia_cli.data.read.kinds import INTEGER

COUNTS = [f"I{number}" for number in range(1, 14)]
CATEGORIES = [f"C{number}" for number in range(1, 27)]
RAW = declared(
    {"columns": COUNTS, "read": "integer", "missing": 0, "steps": ["log_buckets", "text"]},
    {"columns": CATEGORIES, "read": "hexadecimal", "digits": 8},
)
FORMAT = TextFormat({"Label": INTEGER} | kinds_of(RAW), delimiter=",", header=True)
DATASET = {
    "labels": ["label"],
    "sparse": COUNTS + CATEGORIES,
    "raw": RAW,
    "split": {"kind": "files", "train": ["train-*.parquet"], "eval": ["valid-*.parquet"]},
}


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Prepare a folder of train.csv, valid.csv and test.csv, plain or compressed; raises DataError."""
    files = [find_file(source, f"{name}.csv", "give the folder of Criteo_x4") for name in ("train", "valid", "test")]
    parts = [part for file in files for part in text_parts(file, FORMAT, _table)]
    return write_dataset(parts, DATASET, output, options, progress)


def _table(block: TextBlock) -> Any:
    """Return the rows of a block: counts as ids of their buckets, of 0 where they are missing; categories unchanged."""
    label = block.integers("Label")
    block.reject((label < 0) | (label > 1), "Label is neither 0 nor 1")
    return block.table({"label": label.astype(np.int8)} | block.made(RAW))
