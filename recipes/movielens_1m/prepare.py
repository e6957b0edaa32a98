"""MovieLens 1M to Parquet: will a person give a film four stars or more?"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.data.hashing import text_id
from persia_cli.data.recipe import DataError, GroupedWriter, PrepareOptions, PrepareReport, Progress, new_folder
from persia_cli.data.text import BadRows, TextBlock, TextFile

# Columns are set apart by two colons, read here as one colon with an empty column between each two.
RATINGS = ["user", "_1", "movie", "_2", "rating", "_3", "timestamp"]
USERS = ["user", "_1", "gender", "_2", "age", "_3", "occupation", "_4", "zip"]
GENDERS = ["F", "M"]
LIKED = 4
"""Stars from which on a rating counts as positive."""
NAME = "movielens_1m.parquet"


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Write movielens_1m.parquet from a folder with ratings.dat and users.dat, each plain or .gz.

    Rows keep the order of ratings.dat. Raises DataError if one of the files is missing, or if more rows than allowed do
    not parse (a rating by a person who is not in users.dat is one that does not).
    """
    ratings, users = _find(source, "ratings.dat"), _find(source, "users.dat")
    total = ratings.stat().st_size
    bad = BadRows(options.max_bad_rows)
    with new_folder(output) as folder, GroupedWriter(folder / NAME, options.row_group_rows) as writer:
        people = pa.concat_tables([_people(block) for block in TextFile(users, USERS, ":", bad).blocks(lambda _: None)])
        for block in TextFile(ratings, RATINGS, ":", bad).blocks(lambda done: progress(done, total)):
            writer.write(_table(block, people))
        if not writer.rows:
            raise DataError(f"{source} holds no ratings in MovieLens 1M's format")
    made = output / NAME
    return PrepareReport(writer.rows, (made,), made.stat().st_size, bad.count, tuple(bad.first))


def _find(source: Path, name: str) -> Path:
    for file in (source / name, source / f"{name}.gz"):
        if file.is_file():
            return file
    raise DataError(f"{source} has neither {name} nor {name}.gz; give the folder that ml-1m.zip unpacks to")


def _people(block: TextBlock) -> Any:
    """Return who the users are: user, gender, age and occupation, one row each."""
    numbers = _numbers(block, ["user", "age", "occupation"])
    gender = pc.index_in(block.columns.column("gender"), value_set=pa.array([g.encode() for g in GENDERS], pa.binary()))
    block.reject(gender.is_null().to_numpy(zero_copy_only=False), "the gender is neither F nor M")
    ids = np.array([text_id("gender", each) for each in GENDERS], np.uint64)
    numbers["gender"] = ids[gender.fill_null(0).to_numpy(zero_copy_only=False)]
    return pa.table({name: values[block.good] for name, values in numbers.items()})


def _table(block: TextBlock, people: Any) -> Any:
    """Return the good rows of a block as a table of the columns that the data set has."""
    numbers = _numbers(block, ["user", "movie", "rating", "timestamp"])
    stars = numbers["rating"]
    block.reject((stars < 1) | (stars > 5), "the rating is not 1 to 5")
    person = pc.index_in(pa.array(numbers["user"]), value_set=people.column("user").combine_chunks())
    block.reject(person.is_null().to_numpy(zero_copy_only=False), "the user is not in users.dat")
    index = person.fill_null(0)
    columns: dict[str, Any] = {
        "label": (stars >= LIKED).astype(np.int8),
        "rating": stars.astype(np.int8),
        "timestamp": numbers["timestamp"].astype(np.int64),
        "user": numbers["user"],
        "movie": numbers["movie"],
    }
    columns |= {name: people.column(name).take(index) for name in ("gender", "age", "occupation")}
    return pa.table(columns).filter(pa.array(block.good))


def _numbers(block: TextBlock, names: list[str]) -> dict[str, NDArray[np.uint64]]:
    """Return columns as whole numbers, 0 where there is none; such rows are rejected."""
    numbers = {}
    for name in names:
        column = block.columns.column(name)
        fits = pc.fill_null(pc.match_substring_regex(column, "^[0-9]{1,18}$"), False)
        block.reject(~fits.to_numpy(zero_copy_only=False), f"{name.replace('_', ' ')} is not a number")
        digits = pc.if_else(fits, column, pa.scalar(b"0", pa.binary()))
        numbers[name] = digits.cast(pa.string()).cast(pa.uint64()).to_numpy(zero_copy_only=False)
    return numbers
