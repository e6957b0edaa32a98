"""Avazu's clicks on mobile advertisements (Kaggle, 2014) to Parquet."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from persia_cli.data.prepare.options import SplitChoice
from persia_cli.data.prepare.parts import text_parts
from persia_cli.data.prepare.recipe import (
    PrepareOptions,
    PrepareReport,
    Progress,
    declared,
    source_files,
    write_dataset,
)
from persia_cli.data.prepare.text import TextBlock, TextFormat
from persia_cli.data.read.kinds import INTEGER, SKIP, hexadecimal
from persia_cli.data.read.raw_values import hours_of

NAMES = ["site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id", "device_ip",
         "device_model"]  # fmt: skip
"""Columns of eight hexadecimal digits, the hashes that Avazu made of its texts."""
CODES = ["C1", "banner_pos", "device_type", "device_conn_type", *(f"C{number}" for number in range(14, 22))]
"""Columns of small integers; -1 stands for unknown."""
FORMAT = TextFormat(
    {"id": SKIP, "click": INTEGER, "hour": INTEGER, "C1": INTEGER, "banner_pos": INTEGER}
    | dict.fromkeys(NAMES, hexadecimal(8))
    | dict.fromkeys(CODES[2:], INTEGER),
    delimiter=",",
    header=True,
)
DAY = ["hours", {"floor_divide": 24}]
TIMES = ["hour_of_day", "weekday", "weekend"]
RAW = declared(
    {"columns": ["hour_of_day"], "field": "hour", "read": "integer", "steps": ["hours", {"remainder": 24}]},
    # The first day of 1970 was a Thursday.
    {"columns": ["weekday"], "field": "hour", "read": "integer", "steps": [*DAY, {"subtract": -3}, {"remainder": 7}]},
    {"columns": ["weekend"], "field": "hour", "read": "integer",
     "steps": [*DAY, {"subtract": -3}, {"remainder": 7}, {"floor_divide": 5}]},
    {"columns": NAMES, "read": "hexadecimal", "digits": 8},
)  # fmt: skip
DATASET = {
    "labels": ["label"],
    "sparse": ["hour_of_day", "weekday", *CODES[:2], *NAMES, *CODES[2:]],
    "raw": RAW,
    "split": {"kind": "column", "column": "split", "train": "train", "eval": "eval"},
}
LAST = SplitChoice("chronological", 0.2)
"""The file is ordered by time, so its last fifth evaluates: about the last two of ten days."""
BY_FILE = {"kind": "files", "train": ["train-*.parquet"], "eval": ["valid-*.parquet"]}
"""The split of Avazu_x4, which comes as three files."""


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Write Parquet from train.csv, or a folder of the three files of Avazu_x4; raises DataError."""
    files = source_files(source, "give train.csv or train.gz of the Kaggle competition")
    parts = [part for file in files for part in text_parts(file, FORMAT, _table)]
    if options.split is None and {"train", "valid"} <= {file.name.partition(".")[0] for file in files}:
        return write_dataset(parts, DATASET | {"split": BY_FILE}, output, options, progress)
    return write_dataset(parts, DATASET, output, replace(options, split=options.split or LAST), progress)


def _table(block: TextBlock) -> Any:
    click, made = block.integers("click"), block.made(RAW)
    block.reject((click < 0) | (click > 1), "click is neither 0 nor 1")
    hours, _ = hours_of(block.integers("hour"))
    columns = {"label": click.astype(np.int8), "day": pa.array((hours // 24).astype(np.int32), pa.date32())}
    columns |= {name: made[name].astype(np.uint64) for name in TIMES}
    names = [*CODES[:2], *NAMES, *CODES[2:]]
    return block.table(columns | {name: made[name] if name in made else block.ids(name) for name in names})
