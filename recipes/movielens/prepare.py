"""MovieLens 100K, 1M and 25M to Parquet; the label is a rating of four stars or more."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from persia_cli.data.prepare.parts import DatasetPart, PartLog, read_table, text_parts
from persia_cli.data.prepare.recipe import (
    DataError,
    PrepareOptions,
    PrepareReport,
    Progress,
    RawColumns,
    declared,
    find_file,
    write_dataset,
)
from persia_cli.data.prepare.text import TextBlock, TextFormat
from persia_cli.data.read.bad_rows import BadRows
from persia_cli.data.read.kinds import BYTES, INTEGER, NUMBER, SKIP, TEXT

LIKED = 4
"""Least number of stars of a positive rating."""


@dataclass(frozen=True)
class Release:
    """A release of the data: its ratings, and a second file about users or movies."""

    ratings: TextFormat
    """Columns in this order: user, movie, rating, timestamp."""
    side: str
    """Name of the second file."""
    side_format: TextFormat
    """Its first column is the key of the user or movie."""
    of: str
    """`user` or `movie`."""
    features: tuple[str, ...]
    raw: tuple[RawColumns, ...]
    """Sources of those features that are no numbers; numbers are unchanged."""


REMEDY = "give the folder that a MovieLens release unpacks to"


def _ratings(names: list[str], delimiter: str, header: bool) -> TextFormat:
    return TextFormat(
        dict(zip(names, (INTEGER, INTEGER, NUMBER, INTEGER), strict=True)), delimiter=delimiter, header=header
    )


PLAIN = ["user", "movie", "rating", "timestamp"]
PERSON = ("gender", "age", "occupation")
RELEASES = {
    "u.data": Release(
        _ratings(PLAIN, "\t", header=False),
        "u.user",
        TextFormat({"user": INTEGER, "age": INTEGER, "gender": TEXT, "occupation": TEXT, "zip": SKIP}, delimiter="|"),
        "user",
        PERSON,
        declared({"columns": ["gender", "occupation"], "read": "text"}),
    ),
    "ratings.dat": Release(
        _ratings(PLAIN, "::", header=False),
        "users.dat",
        TextFormat(
            {"user": INTEGER, "gender": TEXT, "age": INTEGER, "occupation": INTEGER, "zip": SKIP}, delimiter="::"
        ),
        "user",
        PERSON,
        declared({"columns": ["gender"], "read": "text"}),
    ),
    "ratings.csv": Release(
        _ratings(["userId", "movieId", "rating", "timestamp"], ",", header=True),
        "movies.csv",
        TextFormat({"movieId": INTEGER, "title": SKIP, "genres": BYTES}, delimiter=",", header=True, quote='"'),
        "movie",
        ("genres",),
        declared({"columns": ["genres"], "read": "texts", "separator": "|"}),
    ),
}
"""Releases by the name of their file of ratings."""


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Write Parquet from the folder that a release unpacks to, its files plain or compressed.

    Rows keep their order. The ratings of the 1M release may also be Parquet: ratings.parquet with user_id, movie_id,
    rating and timestamp. Raises DataError if a file is missing or if more rows than allowed do not parse; a rating
    whose user or movie is missing in the second file counts as a row that does not parse.
    """
    file, release = _find(source)
    side = find_file(source, release.side, REMEDY)
    bad = BadRows(options.max_bad_rows)
    known = read_table(side, release.side_format, partial(_side_table, release=release), bad)
    dataset = {
        "labels": ["label"],
        "sparse": ["user", "movie", *(_feature(name) for name in release.features)],
        "raw": release.raw,
        "group_by": "user",
        "split": {"kind": "every", "n": 5, "offset": 4},
    }
    if file.suffix == ".parquet":
        parts = [DatasetPart("ratings", (file, side), partial(_parquet_tables, file, release, known))]
    else:
        parts = text_parts(file, release.ratings, partial(_block_table, release=release, known=known), also=[side])
    return write_dataset(parts, dataset, output, options, progress, bad=bad, time="timestamp")


def _find(source: Path) -> tuple[Path, Release]:
    """Return the file with the ratings, and its release."""
    for name, release in RELEASES.items():
        if any(source.glob(f"{name}*")):
            return find_file(source, name, REMEDY), release
    if (source / "ratings.parquet").is_file():
        return source / "ratings.parquet", RELEASES["ratings.dat"]
    raise DataError(f"{source} has none of {', '.join(RELEASES)}; {REMEDY}")


def _feature(name: str) -> Any:
    return {"name": name, "pooling": "mean"} if name == "genres" else name


def _side_table(block: TextBlock, release: Release) -> Any:
    """Return the features of users or movies, one row each."""
    columns: dict[str, Any] = {"key": block.integers(next(iter(release.side_format.columns)))}
    if "gender" in release.features:
        block.choices("gender", ["F", "M"])
    made = block.made(release.raw)
    for name in release.features:
        columns[name] = made[name] if name in made else block.ids(name)
    return block.table(columns)


def _block_table(block: TextBlock, release: Release, known: Any) -> Any:
    user, movie, rating, timestamp = block.format.columns
    values = block.integers(user), block.integers(movie), block.numbers(rating), block.integers(timestamp)
    return block.table(_columns(*values, release, known, block.reject))


def _parquet_tables(file: Path, release: Release, known: Any, log: PartLog) -> Iterator[Any]:
    def refuse(wrong: NDArray[np.bool_], reason: str) -> None:
        if wrong.any():
            raise DataError(f"{file}: {reason} in {np.count_nonzero(wrong)} rows; correct the file")

    try:
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(columns=["user_id", "movie_id", "rating", "timestamp"]):
                kinds = (pa.int64(), pa.int64(), pa.float64(), pa.int64())
                user, movie, stars, timestamp = (
                    column.cast(kind).to_numpy() for column, kind in zip(batch.columns, kinds, strict=True)
                )
                yield pa.table(_columns(user, movie, stars, timestamp, release, known, refuse))
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError(f"{file}: cannot be read as Parquet of MovieLens ratings, {error}") from error
    log.read(file.stat().st_size)


def _columns(
    user: NDArray[np.int64],
    movie: NDArray[np.int64],
    stars: NDArray[Any],
    timestamp: NDArray[np.int64],
    release: Release,
    known: Any,
    reject: Callable[[NDArray[np.bool_], str], None],
) -> dict[str, Any]:
    """Return the columns of some ratings, and call `reject` for impossible ones."""
    reject(~((stars >= 0.5) & (stars <= 5)), "the rating is not within 0.5 to 5")
    place = pc.index_in(
        pa.array(user if release.of == "user" else movie), value_set=known.column("key").combine_chunks()
    )
    reject(place.is_null().to_numpy(zero_copy_only=False), f"the {release.of} is not in {release.side}")
    columns: dict[str, Any] = {
        "label": (stars >= LIKED).astype(np.int8),
        "rating": stars.astype(np.float32),
        "timestamp": timestamp,
        "user": user.astype(np.uint64),
        "movie": movie.astype(np.uint64),
    }
    return columns | {name: known.column(name).take(place.fill_null(0)) for name in release.features}
