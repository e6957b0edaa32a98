"""Histories of users to Parquet for predicting the next item: its last two elements evaluate and test.

A source is a text file with one line for each user: the user, then items, oldest first, all integers with blanks
between them; or ratings.dat of MovieLens 1M, whose order is by time, and by line where times are equal.
"""

import gzip
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.data.prepare.parts import DatasetPart, PartLog
from persia_cli.data.prepare.recipe import (
    DataError,
    PrepareOptions,
    PrepareReport,
    Progress,
    source_files,
    write_dataset,
)

MOST = 200
"""Items of a history that a network reads by default; dataset.yaml has it as `max_length`."""
DATASET = {
    "labels": ["label"],
    "sparse": ["item", {"name": "last_items", "table": "item", "pooling": "none", "max_length": MOST}],
    "group_by": "user",
    "split": {"kind": "column", "column": "part", "train": "train", "eval": "valid", "test": "test"},
}  # fmt: skip
PARTS = ("test", "valid", "train")
"""The part of the last item of a history, of the one before it, and of the one before that."""
_REMEDY = "give the file with a line for each user, or ratings.dat"
_USERS = 1 << 16
"""Users whose rows are written together."""
Numbers = NDArray[np.int64]


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Write Parquet from a file of histories; the source is held in memory. Raises DataError for a line it cannot read.

    A user has a row in each part whose item has an earlier one: two items make a row for the test alone.
    """
    files = source_files(source, _REMEDY)
    named = [file for file in files if file.name.startswith("ratings.dat")]
    if not named and len(files) > 1:
        raise DataError(f"{source} has {len(files)} files, and none is ratings.dat; {_REMEDY}")
    file = (named or files)[0]
    part = DatasetPart("histories", (file,), partial(_tables, file, bool(named)))
    return write_dataset([part], DATASET, output, options, progress)


def _tables(file: Path, are_ratings: bool, log: PartLog) -> Iterator[Any]:
    users, items, bounds = (_ratings if are_ratings else _lines)(file)
    log.read(file.stat().st_size)
    for first in range(0, users.size, _USERS):
        block = slice(first, first + _USERS)
        for back, part in enumerate(PARTS, 1):
            starts, ends = bounds[:-1][block], bounds[1:][block] - back
            there = ends > starts
            yield _table(users[block][there], items, starts[there], ends[there], part)


def _table(users: Numbers, items: Numbers, starts: Numbers, ends: Numbers, part: str) -> Any:
    """Return a row for each user: its history [start, end), and the item at its end."""
    offsets = np.concatenate([[0], np.cumsum(ends - starts)])
    listed = items[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], ends - starts)]
    return pa.table(
        {
            "label": np.ones(users.size, np.int8),
            "user": users,
            "item": items[ends],
            "last_items": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(listed)),
            "part": pa.array([part] * users.size),
        }
    )


def _lines(file: Path) -> tuple[Numbers, Numbers, Numbers]:
    """Return users, the items of all, and the bounds of each one's items."""
    users, items = [], [np.empty(0, np.int64)]
    for number, line in enumerate(_text(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            user, *bought = map(int, line.split())
        except ValueError:
            raise DataError(f"{file}, line {number}: expected integers, a user and its items; {_REMEDY}") from None
        users.append(user)
        items.append(np.array(bought, np.int64))
    if not users:
        raise DataError(f"{file} is empty; {_REMEDY}")
    bounds = np.cumsum([len(each) for each in items])
    return np.array(users, np.int64), np.concatenate(items), bounds


def _ratings(file: Path) -> tuple[Numbers, Numbers, Numbers]:
    """Return the same of MovieLens' ratings."""
    rows = []
    for number, line in enumerate(_text(file).splitlines(), 1):
        try:
            user, movie, _, time = line.split("::")
            rows.append((int(user), int(time), int(movie)))
        except ValueError:
            raise DataError(f"{file}, line {number}: expected user::movie::rating::timestamp; {_REMEDY}") from None
    if not rows:
        raise DataError(f"{file} is empty; {_REMEDY}")
    user, time, movie = np.array(rows, np.int64).T
    order = np.lexsort((time, user))  # it is stable
    users, firsts = np.unique(user[order], return_index=True)
    return users, movie[order], np.append(firsts, user.size)


def _text(file: Path) -> str:
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        return content.decode()
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}; {_REMEDY}") from error
