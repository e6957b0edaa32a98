"""MovieLens 1M to Parquet: will a person give a film four stars or more?"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persia_cli.data.bad_rows import BadRows
from persia_cli.data.parts import read_table, text_parts
from persia_cli.data.recipe import PrepareOptions, PrepareReport, Progress, find_file, write_dataset
from persia_cli.data.text import INTEGER, SKIP, TEXT, TextBlock, TextFormat

RATINGS = TextFormat({"user": INTEGER, "movie": INTEGER, "rating": INTEGER, "timestamp": INTEGER}, delimiter="::")
USERS = TextFormat(
    {"user": INTEGER, "gender": TEXT, "age": INTEGER, "occupation": INTEGER, "zip": SKIP}, delimiter="::"
)
LIKED = 4
"""Stars from which on a rating counts as positive."""
DATASET = {
    "labels": ["label"],
    "sparse": ["user", "movie", "gender", "age", "occupation"],
    "split": {"kind": "every", "n": 5, "offset": 4},
    "shuffle_row_groups": 16,
}


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Prepare a folder with ratings.dat and users.dat, each plain or .gz; rows keep the order of ratings.dat.

    A rating by a person who is not in users.dat is a bad row. Raises DataError.
    """
    ratings, users = (
        find_file(source, name, "give the folder that ml-1m.zip unpacks to") for name in ("ratings.dat", "users.dat")
    )
    bad = BadRows(options.max_bad_rows)
    people = read_table(users, USERS, _people, bad)
    parts = text_parts(ratings, RATINGS, partial(_table, people), also=[users])
    return write_dataset(parts, DATASET, output, options, progress, bad, time="timestamp")


def _people(block: TextBlock) -> Any:
    """Return who the users are: user, gender, age and occupation, one row each."""
    columns: dict[str, Any] = {name: block.ids(name) for name in ("user", "gender", "age", "occupation")}
    block.choices("gender", ["F", "M"])
    return block.table(columns)


def _table(people: Any, block: TextBlock) -> Any:
    """Return the ratings of a block with who gave them."""
    stars = block.integers("rating")
    block.reject((stars < 1) | (stars > 5), "the rating is not 1 to 5")
    user = block.ids("user")
    person = pc.index_in(user, value_set=people.column("user").combine_chunks())
    block.reject(person.is_null().to_numpy(zero_copy_only=False), "the user is not in users.dat")
    columns: dict[str, Any] = {
        "label": pa.array((stars >= LIKED).astype(np.int8)),
        "rating": pa.array(stars.astype(np.int8)),
        "timestamp": pa.array(block.integers("timestamp")),
        "user": user,
        "movie": block.ids("movie"),
    }
    columns |= {name: people.column(name).take(person) for name in ("gender", "age", "occupation")}
    return block.table(columns)
