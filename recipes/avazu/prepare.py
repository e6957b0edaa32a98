"""Avazu's clicks on mobile advertisements (Kaggle, 2014) to Parquet."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.prepare.kinds import INTEGER, SKIP, hexadecimal
from persia_cli.prepare.options import SplitChoice
from persia_cli.prepare.parts import text_parts
from persia_cli.prepare.recipe import PrepareOptions, PrepareReport, Progress, source_files, write_dataset
from persia_cli.prepare.text import TextBlock, TextFormat

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
DATASET = {
    "labels": ["label"],
    "sparse": ["hour_of_day", "weekday", *CODES[:2], *NAMES, *CODES[2:]],
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
    click, hour = block.integers("click"), block.integers("hour")
    block.reject((click < 0) | (click > 1), "click is neither 0 nor 1")
    day, hour_of_day, wrong = _times(hour)
    block.reject(wrong, "hour is not a YYMMDDHH time")
    columns = {
        "label": click.astype(np.int8),
        "day": pa.array(day.astype(np.int32), pa.date32()),
        "hour_of_day": hour_of_day.astype(np.uint64),
        "weekday": ((day + 3) % 7).astype(np.uint64),
        "weekend": ((day + 3) % 7 > 4).astype(np.uint64),
    }
    return block.table(columns | {name: block.ids(name) for name in DATASET["sparse"] if name not in columns})


def _times(hour: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the days since 1970 and the hours of the day of YYMMDDHH, and a mask of values that are no such time."""
    year, month, day, hours = (hour // 10**power % 100 for power in (6, 4, 2, 0))
    wrong = (hour < 0) | (hour >= 10**8) | (month < 1) | (month > 12) | (day < 1) | (hours > 23)
    months = (year + 30) * 12 + np.where(wrong, 1, month) - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    days = first + np.where(wrong, 1, day) - 1
    next_first = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    return days, hours, wrong | (days >= next_first)
