"""Clicks on Taobao's display advertisements to Parquet, each with its user's behaviours before it.

The files are too large to sort. Both logs are divided by user into files that fit in memory; there, the history of a
sample is a range of its user's behaviours in the order of time.
"""

import math
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.data.prepare.parts import DatasetPart, PartLog, read_blocks, read_table
from persia_cli.data.prepare.preparation import locked
from persia_cli.data.prepare.recipe import (
    DataError,
    PrepareOptions,
    PrepareReport,
    Progress,
    declared,
    find_file,
    write_dataset,
)
from persia_cli.data.prepare.text import TextBlock, TextFormat
from persia_cli.data.read.bad_rows import BadRows
from persia_cli.data.read.kinds import BYTES, INTEGER, NUMBER, SKIP, TEXT, Kind
from persia_cli.data.read.random_bits import stream
from persia_cli.data.read.text import is_compressed

PROFILE = ["cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level", "shopping_level",
           "occupation", "new_user_class_level"]  # fmt: skip
AD = ["cate_id", "campaign_id", "customer", "brand"]
HISTORY = 50
"""Number of behaviours in a sample's history: the last ones before it."""
LAST_DAY = 1494604800
"""Midnight in China before 13 May 2017, in seconds since 1970: samples from then on evaluate."""


def _csv(columns: dict[str, Kind]) -> TextFormat:
    return TextFormat(columns, delimiter=",", header=True)


SAMPLES = _csv({"user": INTEGER, "time_stamp": INTEGER, "adgroup_id": INTEGER, "pid": TEXT, "nonclk": SKIP,
                "clk": INTEGER})  # fmt: skip
BEHAVIOURS = _csv({"user": INTEGER, "time_stamp": INTEGER, "btag": SKIP, "cate": INTEGER, "brand": INTEGER})
ADS = _csv({"adgroup_id": INTEGER} | dict.fromkeys(AD, INTEGER) | {"brand": BYTES, "price": NUMBER})
USERS = _csv({"userid": INTEGER} | dict.fromkeys(PROFILE, INTEGER))

PLACE = declared({"columns": ["pid"], "read": "text"})
PRICE = declared(
    {"columns": ["price"], "read": "number", "missing": 0, "steps": [{"at_least": 0}, "log1p", "float32"]},
)  # fmt: skip
DATASET = {
    "labels": ["label"],
    "dense": ["price"],
    "sparse": [
        "user", "adgroup_id", "pid", *AD, *PROFILE,
        {"name": "cate_history", "table": "cate_id", "pooling": "none", "max_length": HISTORY},
        {"name": "brand_history", "table": "brand", "pooling": "none", "max_length": HISTORY},
    ],
    "raw": PLACE + PRICE,
    "group_by": "user",
    "split": {"kind": "column", "column": "split", "train": "train", "eval": "eval"},
    "fill": 0.0,
}  # fmt: skip

FILE_BYTES = 64 << 20
"""Bytes of behaviour text per file; as arrays, each thread holds about twice that."""
WORKERS = 2
"""Default number of threads: each takes some 250 MB, half of it for histories before they are written to Parquet."""
_MOST_FILES = 512
_CHUNK_ROWS = 1 << 14
_WAITING_ROWS = 1 << 14
"""Rows of a file of users that are written together."""
_LARGEST = 2**32 - 1
_NAMES = ("raw_sample.csv", "behavior_log.csv", "ad_feature.csv", "user_profile.csv")
_REMEDY = f"give the folder with {', '.join(_NAMES)}"


@dataclass(frozen=True)
class Side:
    """Features of advertisements or of users, by ascending key."""

    keys: NDArray[np.int64]
    features: Any

    def of(self, keys: NDArray[np.int64]) -> Any:
        """Return one row of features for each key, nulls for unknown keys."""
        place = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        return self.features.take(pa.array(place, mask=self.keys[place] != keys))


def prepare(source: Path, output: Path, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Write Parquet from the folder with the four files, plain or compressed.

    While it runs it needs, in addition to the output, about half the space of behavior_log.csv. Raises DataError if a
    file is missing, or if more rows than allowed do not parse.
    """
    samples, behaviours, ads, users = files = [find_file(source, name, _REMEDY) for name in _NAMES]
    bad = BadRows(options.max_bad_rows)
    sides = _side(read_table(ads, ADS, _ads, bad)), _side(read_table(users, USERS, _users, bad))
    number = min(_MOST_FILES, math.ceil(_unpacked_bytes(behaviours) / FILE_BYTES))
    nbytes = samples.stat().st_size + behaviours.stat().st_size
    bar = _Bar(progress, nbytes)
    with _scratch(output) as by_user:
        for file, format, table in ((samples, SAMPLES, _samples), (behaviours, BEHAVIOURS, _behaviours)):
            format.check_header(file)
            blocks = read_blocks(file, format, PartLog(bad, bar.read))
            _divide(map(table, blocks), by_user / file.name, number)
        parts = []
        for each in range(number):
            rows = partial(_tables, by_user / samples.name, by_user / behaviours.name, each, *sides)
            parts.append(DatasetPart(f"users-{each:04}", tuple(files), rows, nbytes // number))
        options = replace(options, workers=options.workers or WORKERS)
        return write_dataset(parts, DATASET, output, options, bar.join, bad, "time")


@contextmanager
def _scratch(output: Path) -> Iterator[Path]:
    """Yield an empty folder next to the output for this process alone, and remove it at the end. Raises DataError."""
    folder = output.absolute().with_name(f".{output.name}.by-user")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, output):
            try:
                for left in folder.iterdir():
                    shutil.rmtree(left)
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error}") from error


def _divide(tables: Iterable[Any], folder: Path, number: int) -> None:
    """Write all rows to `number` files by user, in their order; raises DataError if there are none."""
    folder.mkdir(parents=True)
    writers: list[Any] = []
    waiting: list[list[Any]] = [[] for _ in range(number)]

    def write(bucket: int, most: int) -> None:
        if sum(map(len, waiting[bucket])) >= most:
            writers[bucket].write_table(pa.concat_tables(waiting[bucket]).combine_chunks())
            waiting[bucket] = []

    with ExitStack() as stack:
        for table in tables:
            if not writers:
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                streams = (
                    pa.ipc.new_stream(_file(folder, bucket), table.schema, options=options) for bucket in range(number)
                )
                writers = [stack.enter_context(stream) for stream in streams]
            users = table.column("user").to_numpy().astype(np.uint64)
            buckets = (stream(np.uint64(0), users) % np.uint64(number)).astype(np.int64)
            rows = table.take(np.argsort(buckets, kind="stable"))
            ends = np.cumsum(np.bincount(buckets, minlength=number)).tolist()
            for bucket, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
                waiting[bucket].append(rows.slice(start, end - start))
                write(bucket, _WAITING_ROWS)
        for bucket in range(len(writers)):
            write(bucket, 1)
    if not writers:
        raise DataError(f"the source has no rows of {folder.name}")


def _read(folder: Path, number: int) -> Any:
    """Return all rows of a file as one Arrow table."""
    with pa.memory_map(_file(folder, number)) as file, pa.ipc.open_stream(file) as stream:
        return stream.read_all().combine_chunks()


def _file(folder: Path, number: int) -> str:
    return str(folder / f"{number:04}.arrow")


class _Bar:
    """A progress bar of two halves: reading the logs, and joining them."""

    def __init__(self, progress: Progress, nbytes: int) -> None:
        self._progress = progress
        self._nbytes = nbytes
        self._done = 0

    def read(self, nbytes: int) -> None:
        """Count bytes of the logs."""
        self._done += nbytes
        self._progress(self._done, 2 * self._nbytes)

    def join(self, done: int, total: int) -> None:
        """Report the progress of the join."""
        self._progress(self._nbytes + done, self._nbytes + total)


def _unpacked_bytes(file: Path) -> int:
    return max(1, file.stat().st_size * (4 if is_compressed(file) else 1))


def _samples(block: TextBlock) -> Any:
    click = block.integers("clk")
    block.reject((click < 0) | (click > 1), "clk is neither 0 nor 1")
    columns = {name: _small(block, name) for name in ("user", "time_stamp", "adgroup_id")}
    return block.table(columns | block.made(PLACE) | {"label": click.astype(np.int8)})


def _behaviours(block: TextBlock) -> Any:
    return block.table({name: _small(block, name) for name in ("user", "time_stamp", "cate", "brand")})


def _small(block: TextBlock, name: str) -> NDArray[np.uint32]:
    """Return integers as 32 bits, which take half the space."""
    values = block.integers(name, missing=None if name in ("user", "time_stamp") else 0)
    block.reject((values < 0) | (values > _LARGEST), f"{name} is not within 32 bits")
    return values.astype(np.uint32)


def _ads(block: TextBlock) -> Any:
    brand = block.texts("brand")
    unknown = pc.fill_null(pc.equal(brand, "NULL"), True)
    number = pc.fill_null(pc.match_substring_regex(brand, "^[0-9]{1,18}$"), False)
    block.reject(
        pc.invert(pc.or_(unknown, number)).to_numpy(zero_copy_only=False), "brand is neither a number nor NULL"
    )
    columns: dict[str, Any] = {"key": block.integers("adgroup_id")} | {name: block.ids(name) for name in AD[:-1]}
    columns["brand"] = pc.if_else(number, brand, None).cast(pa.uint64())
    return block.table(columns | block.made(PRICE))


def _users(block: TextBlock) -> Any:
    return block.table({"key": block.integers("userid")} | {name: block.ids(name) for name in PROFILE})


def _side(rows: Any) -> Side:
    rows = rows.sort_by("key").combine_chunks()
    return Side(rows.column("key").to_numpy(), rows.drop_columns("key"))


def _tables(samples: Path, behaviours: Path, number: int, ads: Side, users: Side, log: PartLog) -> Iterator[Any]:
    """Yield the samples of one file of users, in the order of time."""
    seen = _read(behaviours, number)
    moments = _moments(seen)
    order = np.argsort(moments, kind="stable")
    moments = moments[order]
    past = {name: seen.column(name).to_numpy()[order] for name in ("cate", "brand")}
    shown = _read(samples, number).sort_by([("time_stamp", "ascending"), ("user", "ascending")])
    for first in range(0, shown.num_rows, _CHUNK_ROWS):
        rows = shown.slice(first, _CHUNK_ROWS)
        begin = np.searchsorted(moments, rows.column("user").to_numpy().astype(np.uint64) << np.uint64(32))
        stop = np.searchsorted(moments, _moments(rows))
        start = np.maximum(begin, stop - HISTORY)
        histories = {f"{name}_history": _lists(ids, start, stop) for name, ids in past.items()}
        yield pa.table(_columns(rows, ads, users) | histories)
    log.read(0)


def _moments(rows: Any) -> NDArray[np.uint64]:
    """Return user and time in one number, so that sorting orders by user first."""
    user, time = (rows.column(name).to_numpy().astype(np.uint64) for name in ("user", "time_stamp"))
    moments: NDArray[np.uint64] = user << np.uint64(32) | time
    return moments


def _lists(ids: NDArray[np.uint32], start: NDArray[np.int64], stop: NDArray[np.int64]) -> Any:
    """Return the ids [start, stop) of each sample as Arrow lists."""
    bounds = np.concatenate([[0], np.cumsum(stop - start)])
    chosen = ids[np.repeat(start - bounds[:-1], stop - start) + np.arange(bounds[-1])]
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), pa.array(chosen.astype(np.uint64)))


def _columns(rows: Any, ads: Side, users: Side) -> dict[str, Any]:
    """Return the columns of samples without their histories."""
    user, time, ad = (rows.column(name).to_numpy().astype(np.int64) for name in ("user", "time_stamp", "adgroup_id"))
    split = pa.DictionaryArray.from_arrays(pa.array((time >= LAST_DAY).astype(np.int8)), pa.array(["train", "eval"]))
    columns: dict[str, Any] = {"label": rows.column("label"), "split": split, "time": time}
    columns |= {"user": user.astype(np.uint64), "adgroup_id": ad.astype(np.uint64), "pid": rows.column("pid")}
    for side, keys in ((ads, ad), (users, user)):
        known = side.of(keys)
        columns |= {name: known.column(name) for name in known.column_names}
    return columns
