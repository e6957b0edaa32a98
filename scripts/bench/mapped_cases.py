"""Case of `scripts.bench kernels` for rows in mapped files, as servers of exported models read them, warm."""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.result import OURS, Result
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.serving.description import ROWS, FrozenFeature
from persia_cli.serving.row_reader import GroupReader, pooled_name
from persia_cli.serving.row_writer import TableRules, planned_group, writing_group
from persia_cli.store.layout import table_salt
from scripts.bench import stores
from scripts.bench.alternate import Scale, Turn, alternate, compared

DIM = 16
TABLE = "feature-0"
"""The table of `stores.keys_of`."""
IDS = 2600
"""Ids of a look-up: those of a request of 100 samples and 26 features."""
REQUESTS = 32
MAP_BYTES = 2**36
"""Largest size of LMDB's file, which grows as it needs."""
Rows = NDArray[np.float32]
Ids = NDArray[np.int64]


def mapped(scale: Scale) -> Iterator[Result]:
    """Measure look-ups in mapped rows, against those of the training store, and against LMDB where it is installed."""
    rows, requests = scale.rows[1], min(REQUESTS, scale.batch)
    values = np.random.default_rng(1).standard_normal((rows, DIM), np.float32)
    (shard,) = stores.filled(DIM, "sgd", rows)
    for skewed in (False, True):
        draw = np.random.default_rng(2)
        drawn = [stores.zipf(draw, rows, IDS) if skewed else draw.integers(0, rows, IDS) for _ in range(requests)]
        asked = [stores.request(np.unique(ids)) for ids in drawn]
        with terminating_interrupts(), TemporaryDirectory(prefix="persia-bench-") as folder:
            ours = mapped_reader(Path(folder, "ours"), values)
            turns: dict[str, Turn | Callable[[], object]] = {
                OURS: _all(ours, [each.ids for each in asked]),
                "training store": lambda: [shard.look_up(0, each.keys, each.tables, 1, False) for each in asked],  # noqa: B023
            }
            if has_lmdb():
                turns["LMDB"] = _all(lmdb_reader(Path(folder, "lmdb"), values), [each.ids for each in asked])
            timed = alternate(turns, scale.rounds, scale.at_least)
        label = f"mapped look-up, dim {DIM}, {rows / 1e6:.3g}M rows, {'Zipf' if skewed else 'uniform'}"
        yield compared(label, timed, sum(each.ids.size for each in asked) / 1e6, "Mids/s")


def mapped_reader(folder: Path, values: Rows) -> Callable[[Ids], Rows]:
    """Write the rows of ids 0, 1, … as an export does; returns what reads them."""
    (folder / ROWS).mkdir(parents=True)
    salt = table_salt(TABLE)
    group = planned_group(
        0, DIM, "float32", "float32", [TableRules(TABLE, len(values), salt, 0.01, 2**24, 1, 0, 0)]
    )  # fmt: skip
    keys = stores.keys_of(np.arange(len(values)))
    order = np.argsort(keys)
    with writing_group(folder, group) as writer:
        writer.add(0, keys[order], values[order])
    reader = GroupReader(folder, group, [FrozenFeature(TABLE, 0, TABLE, "sum")], 0, "zeros")
    single, missing, name = np.ones(1, np.bool_), np.zeros(1, np.int64), pooled_name(0)

    def read(ids: Ids) -> Rows:
        offsets = np.arange(ids.size + 1, dtype=np.uint32)
        found: Rows = reader.read(ids.view(np.uint64), offsets, ids.size, single, missing)[name]
        return found.reshape(ids.size, DIM)

    return read


def has_lmdb() -> bool:
    """Return True if LMDB is installed."""
    try:
        import lmdb  # noqa: F401
    except ImportError:
        return False
    return True


def lmdb_reader(folder: Path, values: Rows) -> Callable[[Ids], Rows]:
    """Write the rows of ids 0, 1, … into LMDB; returns what reads them in its fastest way, many at once.

    Values of one size, under keys of one size, come as one block without an object of Python for each.
    """
    import lmdb

    folder.mkdir()
    environment = lmdb.open(str(folder), map_size=MAP_BYTES, sync=False, max_dbs=1)
    table = environment.open_db(b"rows", dupsort=True, dupfixed=True)
    row = np.dtype([("id", ">u8"), ("values", np.float32, DIM)])
    with environment.begin(write=True) as writing:
        ids = np.arange(len(values), dtype=">u8").tobytes()
        pairs = ((ids[8 * n : 8 * n + 8], values[n].tobytes()) for n in range(len(values)))
        writing.cursor(table).putmulti(pairs, append=True)
    cursor = environment.begin(table).cursor()

    def read(asked: Ids) -> Rows:
        keys: list[Any] = asked.astype(">u8").view("V8").tolist()
        found = cursor.getmulti(keys, dupdata=True, dupfixed_bytes=4 * DIM, keyfixed=True)
        return np.ascontiguousarray(np.frombuffer(found, row)["values"])

    return read


def _all(read: Callable[[Ids], Rows], asked: list[Ids]) -> Callable[[], object]:
    return lambda: [read(ids) for ids in asked]
