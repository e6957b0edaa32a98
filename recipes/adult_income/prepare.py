"""UCI Adult (Census Income) to Parquet: does a person earn more than 50,000 dollars a year?"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.data.hashing import text_id
from persia_cli.data.recipe import DataError, GroupedWriter, PrepareOptions, PrepareReport, Progress, new_folder
from persia_cli.data.text import BadRows, TextBlock, TextFile

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
COLUMNS = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "gender",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income",
]
_LABELS = {"<=50K": 0, ">50K": 1}
SPLITS = {"adult.data": "train", "adult.test": "eval"}
NAME = "adult_income.parquet"
ROW_GROUP_ROWS = 4096


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Write adult_income.parquet from a folder with adult.data and adult.test, each plain or .gz.

    Raises DataError if one of them is missing, or if more rows than allowed do not parse.
    """
    files = {_find(source, name): split for name, split in SPLITS.items()}
    total = sum(file.stat().st_size for file in files)
    bad = BadRows(options.max_bad_rows)
    done = 0
    row_group_rows = min(options.row_group_rows, ROW_GROUP_ROWS)
    with new_folder(output) as folder, GroupedWriter(folder / NAME, row_group_rows) as writer:
        for file, split in files.items():
            for block in TextFile(file, COLUMNS, ",", bad, comment="|").blocks(lambda _: None):
                writer.write(_table(block, split))
            done += file.stat().st_size
            progress(done, total)
        if not writer.rows:
            raise DataError(f"{source} holds no rows in Adult's format")
    made = output / NAME
    return PrepareReport(writer.rows, (made,), made.stat().st_size, bad.count, tuple(bad.first))


def _find(source: Path, name: str) -> Path:
    for file in (source / name, source / f"{name}.gz"):
        if file.is_file():
            return file
    raise DataError(f"{source} has neither {name} nor {name}.gz; give the folder that UCI's adult.zip unpacks to")


def _table(block: TextBlock, split: str) -> Any:
    """Return the good rows of a block as a table of the columns that the data set has."""
    rows = block.columns
    block.drop(np.logical_and.reduce([rows.column(name).is_null().to_numpy(zero_copy_only=False) for name in COLUMNS]))
    income, label = _categories(rows.column("income"))
    values = np.array([_LABELS.get(text.rstrip("."), -1) for text in income], np.int8)[label]
    block.reject(values < 0, "the income is neither <=50K nor >50K")
    columns: dict[str, Any] = {"split": pa.array([split] * rows.num_rows), "label": values}
    numbers: dict[str, NDArray[np.int64]] = {}
    for name in NUMBERS:
        numbers[name], wrong = _integers(rows.column(name))
        block.reject(wrong, f"{name} is not a number")
    columns.update(_dense(numbers))
    columns.update({f"raw_{name}": value.astype(np.int32) for name, value in numbers.items()})
    for name in CATEGORIES:
        texts, index = _categories(rows.column(name))
        block.reject(np.array([text == "" for text in texts], np.bool_)[index], f"{name} is empty or no ASCII text")
        columns[name] = np.array([text_id(name, text) for text in texts], np.uint64)[index]
    for name, value in _buckets(numbers).items():
        texts, index = _categories(pa.array(value.astype(str)).cast(pa.binary()))
        columns[name] = np.array([text_id(name, text) for text in texts], np.uint64)[index]
    table = pa.table(columns)
    return table if block.good.all() else table.filter(pa.array(block.good))


def _dense(numbers: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float32]]:
    """Return the numbers scaled by round constants, not by anything computed from the rows."""
    scaled = {
        "age": (numbers["age"] - 40) / 15,
        "education_num": (numbers["education_num"] - 10) / 2.5,
        "capital_gain": np.log1p(numbers["capital_gain"]) / 9,
        "capital_loss": np.log1p(numbers["capital_loss"]) / 7.5,
        "hours_per_week": (numbers["hours_per_week"] - 40) / 12,
    }
    return {name: values.astype(np.float32) for name, values in scaled.items()}


def _buckets(numbers: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """Return numbers as categories: their effect is not linear, and sums of money come in a few fixed amounts."""
    return {
        "age_bucket": numbers["age"] // 5,
        "hours_bucket": numbers["hours_per_week"] // 5,
        "capital_gain_amount": numbers["capital_gain"],
        "capital_loss_amount": numbers["capital_loss"],
    }


def _integers(column: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return int64 values, and which rows hold no plain number (0 in their place)."""
    fits = pc.fill_null(pc.match_substring_regex(column, "^ *[0-9]{1,9} *$"), False)
    digits = pc.replace_substring(pc.if_else(fits, column, pa.scalar(b"0", pa.binary())), b" ", b"")
    values = digits.cast(pa.string()).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values, ~fits.to_numpy(zero_copy_only=False)


def _categories(column: Any) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct texts of a column, stripped, and where each row's is; what is no ASCII becomes empty."""
    encoded = column.fill_null(b"").dictionary_encode()
    texts = [value.decode().strip() if value.isascii() else "" for value in encoded.dictionary.to_pylist()]
    return texts, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
