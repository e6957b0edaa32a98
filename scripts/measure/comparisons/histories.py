"""Histories from a store of events against ready lists, on MovieLens-1M: a loader's speed, and the memory of loaders.

Each rating is a sample with its user's 200 newest earlier movies. Batches have 4,096 samples; the time is that of all
threads of a loader.
"""

import multiprocessing
import os
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from persia_cli.bench.result import OURS, Result
from persia_cli.config.schema import ParquetDataset
from persia_cli.data.read.block import Earlier
from persia_cli.data.read.source import open_source
from persia_cli.errors import UserError
from scripts.measure import Given, Note
from scripts.measure.timing import Turn, alternate, compared, measured

LENGTH, BATCH, LOADERS = 200, 4096, 4
READY = "ready lists"
_MIB = 2**20


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    data = os.environ.get("PERSIA_TEST_DATA", "data")
    parser.add_argument(
        "--ratings", type=Path, default=Path(data, "ml-1m/ratings.parquet"), help="default: %(default)s"
    )
    parser.set_defaults(rounds=3)


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Measure speed, then what a sample takes in memory, then what loaders take."""
    if not given.ratings.is_file():
        raise UserError(f"--ratings={given.ratings} is not there; give the file ratings.parquet of MovieLens-1M")
    with TemporaryDirectory() as folder:
        note("ready lists are written")
        rows = 50_000 if given.quick else None
        described = _write(
            pq.read_table(given.ratings, columns=["user_id", "movie_id", "timestamp"]), Path(folder), rows
        )
        note("speed")
        sides = {name: Turn(partial(_epoch, dataset), loops=1) for name, dataset in described.items()}
        samples = pq.read_metadata(Path(folder, "ready.parquet")).num_rows
        timed = alternate(sides, given.rounds, clock=process_time)
        yield compared("loader, ML-1M", timed, samples, "samples/s")
        held = {name: [_bytes_per_sample(dataset)] for name, dataset in described.items()}
        yield measured("decoded lists, ML-1M", "bytes/sample", held)
        note(f"memory of {LOADERS} loaders")
        taken = {name: [_memory(dataset)] for name, dataset in described.items()}
        yield measured(f"memory of {LOADERS} loaders, ML-1M", "MiB", taken, note="proportional set size")


def _write(ratings: Any, folder: Path, rows: int | None) -> dict[str, ParquetDataset]:
    """Write the ratings as events and with ready lists; return both data sets."""
    ratings = ratings.slice(0, rows).append_column("label", pa.repeat(1, len(ratings.slice(0, rows))))
    pq.write_table(ratings, folder / "events.parquet", row_group_size=1 << 16)
    history = {"user": "user_id", "time": "timestamp", "columns": ["movie_id"], "max_length": LENGTH}
    sequence = {"name": "seen.movie_id", "table": "movie_id", "pooling": "none"}
    common: dict[str, Any] = {"kind": "parquet", "labels": ["label"]}
    from_store = ParquetDataset.model_validate(
        common
        | {"path": str(folder / "events.parquet"), "sparse": ["user_id", "movie_id", sequence]}
        | {"histories": {"seen": history}, "split": {"kind": "eval"}}
    )
    source = open_source(from_store, "eval", 0)
    ids, offsets = source.read(0, 0, source.rows).lists[2]
    source.close()
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids.view("int64")))
    pq.write_table(ratings.append_column("seen", lists), folder / "ready.parquet", row_group_size=1 << 16)
    split = {"kind": "every", "n": 10**6, "offset": 10**6 - 1}
    as_lists = sequence | {"column": "seen", "max_length": LENGTH}
    ready = {"path": str(folder / "ready.parquet"), "sparse": ["user_id", "movie_id", as_lists], "split": split}
    found = from_store.model_dump() | {"split": split}
    return {OURS: ParquetDataset.model_validate(found), READY: ParquetDataset.model_validate(common | ready)}


def _epoch(dataset: ParquetDataset) -> None:
    source = open_source(dataset, "train", 0)
    for start in range(0, source.rows, BATCH):
        source.read(0, start, min(start + BATCH, source.rows))
    source.close()


def _bytes_per_sample(dataset: ParquetDataset) -> float:
    """Return what the sequences of a decoded block take."""
    source: Any = open_source(dataset, "train", 0)
    source.read(0, 0, 1)
    _, block = source._current
    arrays = [ids.spans if isinstance(ids, Earlier) else ids.values for ids in block.lists if ids is not None]
    source.close()
    return float(sum(array.nbytes for array in arrays) / block.order.size)


def _memory(dataset: ParquetDataset) -> float:
    """Return what several loaders take together, each part of a shared page once, with two decoded blocks each."""
    context = multiprocessing.get_context("spawn")
    there, done, sizes = context.Barrier(LOADERS), context.Barrier(LOADERS), context.Queue()
    loaders = [context.Process(target=_load, args=(dataset, there, done, sizes)) for _ in range(LOADERS)]
    for loader in loaders:
        loader.start()
    total = float(sum(sizes.get(timeout=600) for _ in loaders))
    for loader in loaders:
        loader.join()
    return total / _MIB


def _load(dataset: ParquetDataset, there: Any, done: Any, sizes: Any) -> None:
    source = open_source(dataset, "train", 0)
    source.read(0, 0, BATCH)
    there.wait(600)
    sizes.put(psutil.Process().memory_full_info().pss)
    done.wait(600)
    source.close()
