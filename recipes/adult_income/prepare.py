"""UCI Adult (Census Income) to Parquet; the label is an income above 50,000 dollars a year."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.data.ids import text_ids
from persia_cli.prepare.kinds import INTEGER, SKIP, TEXT
from persia_cli.prepare.parts import DatasetPart, PartLog, read_blocks
from persia_cli.prepare.recipe import PrepareOptions, PrepareReport, Progress, find_file, write_dataset
from persia_cli.prepare.text import TextBlock, TextFormat

NUMBERS = ["age", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
CATEGORIES = [
    "workclass",
    "education",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "gender",
    "native_country",
]
COLUMNS = {
    "age": INTEGER,
    "workclass": TEXT,
    "fnlwgt": SKIP,
    "education": TEXT,
    "education_num": INTEGER,
    "marital_status": TEXT,
    "occupation": TEXT,
    "relationship": TEXT,
    "race": TEXT,
    "gender": TEXT,
    "capital_gain": INTEGER,
    "capital_loss": INTEGER,
    "hours_per_week": INTEGER,
    "native_country": TEXT,
    "income": TEXT,
}
FORMAT = TextFormat(COLUMNS, delimiter=",", stripped=True, comment="|", blank_lines=True)
INCOMES = ["<=50K", ">50K", "<=50K.", ">50K."]
"""Label texts of adult.data and of adult.test."""
BUCKETS = ["age_bucket", "hours_bucket", "capital_gain_amount", "capital_loss_amount"]
SPLITS = {"adult.data": "train", "adult.test": "eval"}
ROW_GROUP_ROWS = 4096
DATASET = {
    "labels": ["label"],
    "dense": NUMBERS,
    "sparse": [*CATEGORIES, *BUCKETS],
    "split": {"kind": "column", "column": "split", "train": "train", "eval": "eval"},
}


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Prepare a folder with adult.data and adult.test, each plain or .gz; raises DataError."""
    files = {
        find_file(source, name, "give the folder that UCI's adult.zip unpacks to"): SPLITS[name] for name in SPLITS
    }

    def tables(log: PartLog) -> Iterator[Any]:
        for file, split in files.items():
            for block in read_blocks(file, FORMAT, log):
                yield _table(block, split)

    options = replace(options, row_group_rows=min(options.row_group_rows, ROW_GROUP_ROWS))
    return write_dataset([DatasetPart("adult_income", tuple(files), tables)], DATASET, output, options, progress)


def _table(block: TextBlock, split: str) -> Any:
    """Return the rows of a block as the columns that the README lists."""
    label = block.choices("income", INCOMES) % 2
    numbers = {name: block.integers(name) for name in NUMBERS}
    columns: dict[str, Any] = {"split": pa.array([split] * block.size), "label": label.astype(np.int8)}
    columns |= _dense(numbers)
    columns |= {f"raw_{name}": values.astype(np.int32) for name, values in numbers.items()}
    for name in CATEGORIES:
        columns[name] = block.ids(name)
        block.reject(columns[name].is_null().to_numpy(zero_copy_only=False), f"{name} is missing")
    for name, values in zip(BUCKETS, _buckets(numbers), strict=True):
        columns[name] = text_ids(name, pa.array(values).cast(pa.string()))
    return block.table(columns)


def _dense(numbers: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float32]]:
    """Return the numbers scaled by round constants, which do not depend on the rows."""
    scaled = {
        "age": (numbers["age"] - 40) / 15,
        "education_num": (numbers["education_num"] - 10) / 2.5,
        "capital_gain": np.log1p(np.maximum(numbers["capital_gain"], 0)) / 9,
        "capital_loss": np.log1p(np.maximum(numbers["capital_loss"], 0)) / 7.5,
        "hours_per_week": (numbers["hours_per_week"] - 40) / 12,
    }
    return {name: values.astype(np.float32) for name, values in scaled.items()}


def _buckets(numbers: dict[str, NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Return numbers as categories: their effect is not linear, and sums of money come in a few fixed amounts."""
    return [
        numbers["age"] // 5,
        numbers["hours_per_week"] // 5,
        numbers["capital_gain"],
        numbers["capital_loss"],
    ]
