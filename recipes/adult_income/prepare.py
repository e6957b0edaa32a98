"""UCI Adult (Census Income) to Parquet; the label is an income above 50,000 dollars a year."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from persia_cli.data.prepare.parts import DatasetPart, PartLog, read_blocks
from persia_cli.data.prepare.recipe import PrepareOptions, PrepareReport, Progress, declared, find_file, write_dataset
from persia_cli.data.prepare.text import TextBlock, TextFormat
from persia_cli.data.read.kinds import INTEGER, SKIP, TEXT

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
RAW = declared(
    # Numbers are scaled by round constants, which do not depend on the rows.
    {"columns": ["age"], "read": "integer", "steps": [{"subtract": 40}, {"divide": 15}, "float32"]},
    {"columns": ["education_num"], "read": "integer", "steps": [{"subtract": 10}, {"divide": 2.5}, "float32"]},
    {"columns": ["capital_gain"], "read": "integer", "steps": [{"at_least": 0}, "log1p", {"divide": 9}, "float32"]},
    {"columns": ["capital_loss"], "read": "integer", "steps": [{"at_least": 0}, "log1p", {"divide": 7.5}, "float32"]},
    {"columns": ["hours_per_week"], "read": "integer", "steps": [{"subtract": 40}, {"divide": 12}, "float32"]},
    {"columns": CATEGORIES, "read": "text", "stripped": True},
    # They are categories too: their effect is not linear, and sums of money come in a few fixed amounts.
    {"columns": ["age_bucket"], "field": "age", "read": "integer", "steps": [{"floor_divide": 5}, "text"]},
    {"columns": ["hours_bucket"], "field": "hours_per_week", "read": "integer", "steps": [{"floor_divide": 5}, "text"]},
    {"columns": ["capital_gain_amount"], "field": "capital_gain", "read": "integer", "steps": ["text"]},
    {"columns": ["capital_loss_amount"], "field": "capital_loss", "read": "integer", "steps": ["text"]},
)
DATASET = {
    "labels": ["label"],
    "dense": NUMBERS,
    "sparse": [*CATEGORIES, *BUCKETS],
    "raw": RAW,
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
    made = block.made(RAW)
    columns |= {name: made[name] for name in NUMBERS}
    columns |= {f"raw_{name}": values.astype(np.int32) for name, values in numbers.items()}
    columns |= {name: made[name] for name in (*CATEGORIES, *BUCKETS)}
    for name in CATEGORIES:
        block.reject(columns[name].is_null().to_numpy(zero_copy_only=False), f"{name} is missing")
    return block.table(columns)
