"""Cases of `scripts.bench kernels` for one server's rows, against torch and the limits of the memory."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal

import numpy as np

from persia_cli.bench.result import OURS, Result
from persia_cli.kernels.toolchain.memory import zeros
from persia_cli.store.shard import Shard
from scripts.bench import limits, stores
from scripts.bench.alternate import Scale, Turn, alternate, compared
from scripts.bench.stores import Block, RowRequest

REQUESTS = 16
"""Requests in a row, which need more rows than a cache holds."""
ROWS = 2_000_000
"""Rows of a table that no cache holds."""
KEYS = 100_000
"""Keys of one search of the index."""
UNIT = "Mrows/s"


def look_up(scale: Scale) -> Iterator[Result]:
    """Measure keys to rows, as in training: distinct keys that all have a row."""
    for dim, size in product(scale.dims, scale.rows):
        rows, note = stores.rows_that_fit(size, dim, "adagrad", beside=dim * 4)
        (shard,) = stores.filled(dim, "adagrad", rows)
        for skewed in (False, True):
            yield _look_up(scale, shard, dim, rows, skewed, note)


def _look_up(scale: Scale, shard: Shard, dim: int, rows: int, skewed: bool, note: str) -> Result:
    from persia_cli.bench.baselines import parts

    parts.one_thread()
    asked = _requests(scale, rows, skewed)
    most = max(each.ids.size for each in asked)
    width, arena = shard.layout.groups[0].width, shard.stores[0].rows.arena
    out = np.empty(most * dim, np.float32)
    read, indices = parts.index_select(parts.table(rows, dim), most), [parts.tensor(each.ids) for each in asked]
    timed = alternate(
        {
            OURS: lambda: [shard.look_up(0, each.keys, each.tables, 1, True) for each in asked],
            "torch.index_select": lambda: [read(each) for each in indices],
            "gather limit": lambda: [limits.gather(arena, width, dim, each.ids, out) for each in asked],
        },
        scale.rounds,
        scale.at_least,
    )
    return compared(_label("look-up", dim, rows, skewed), timed, _millions(asked), UNIT, note)


def update(scale: Scale) -> Iterator[Result]:
    """Measure Adagrad steps of rows, from their keys and from the row numbers that the look-up kept."""
    for dim, size in product(scale.dims, scale.rows):
        rows, note = stores.rows_that_fit(size, dim, "adagrad")
        (shard,) = stores.filled(dim, "adagrad", rows)
        for skewed in (False, True):
            yield from _update(scale, shard, dim, rows, skewed, note)


def _update(scale: Scale, shard: Shard, dim: int, rows: int, skewed: bool, note: str) -> Iterator[Result]:
    asked, limit = _requests(scale, rows, skewed), "read-modify-write limit"
    sent = stores.gradients(max(each.ids.size for each in asked), dim)
    width, arena = shard.layout.groups[0].width, shard.stores[0].rows.arena
    timed = alternate(
        {
            "from keys": lambda: _update_all(shard, asked, sent),
            "rows kept": _with_kept_rows(shard, asked, sent),
            limit: lambda: [limits.read_modify_write(arena, width, each.ids) for each in asked],
        },
        scale.rounds,
        scale.at_least,
    )
    for way in ("from keys", "rows kept"):
        label = f"{_label('update Adagrad', dim, rows, skewed)}, {way}"
        yield compared(label, {OURS: timed[way], limit: timed[limit]}, _millions(asked), UNIT, note)


def optimizers(scale: Scale) -> Iterator[Result]:
    """Measure updates of rows kept by the look-up against torch's sparse optimizers with a coalesced gradient."""
    for dim in scale.dims:
        yield _optimizer(scale, dim, "adagrad")
        yield _optimizer(scale, dim, "adam")


def _optimizer(scale: Scale, dim: int, kind: Literal["adagrad", "adam"]) -> Result:
    from persia_cli.bench.baselines import parts

    parts.one_thread()
    rows, note = stores.rows_that_fit(min(ROWS, scale.rows[0]), dim, kind, beside=12 * dim)
    (shard,) = stores.filled(dim, kind, rows)
    asked = _requests(scale, rows, skewed=False)[:4]
    sent = stores.gradients(max(each.ids.size for each in asked), dim)
    baseline = parts.SparseStep(kind, rows, dim)
    held = [baseline.gradient(each.ids, sent.view(np.float32)[: each.ids.size]) for each in asked]
    name = {"adagrad": "Adagrad", "adam": "SparseAdam"}[kind]
    timed = alternate(
        {OURS: _with_kept_rows(shard, asked, sent), f"torch.optim.{name}": lambda: baseline.steps(held)},
        scale.rounds,
        scale.at_least,
    )
    return compared(_label(f"update {name}", dim, rows, False), timed, _millions(asked), UNIT, note)


def index(scale: Scale) -> Iterator[Result]:
    """Measure keys to row numbers at load 0.65, against plain linear probing and a Python dict."""
    rows = scale.rows[0]
    (shard,) = stores.filled(1, "sgd", rows)
    slots = zeros(2 * int(rows / stores.LOAD), np.uint64)
    slots.fill(limits.EMPTY)
    everything = stores.request(np.arange(rows))
    limits.fill_linear(slots, everything.keys, everything.ids)
    rng = np.random.default_rng(4)
    size = min(KEYS, rows)
    uniform = [stores.request(rng.integers(0, rows, size)) for _ in range(16)]
    skewed = [stores.request(stores.zipf(rng, rows, size)) for _ in range(16)]
    wanted = [each.keys.tolist() for each in skewed]
    known = dict(zip(everything.keys[: scale.rows[1]].tolist(), range(scale.rows[1]), strict=True))
    known.update((key, 0) for keys in wanted for key in keys)
    found = np.empty(size, np.int64)

    def ways(asked: Sequence[RowRequest]) -> dict[str, Turn]:
        return {
            OURS: Turn(lambda: [stores.find_rows(shard, each) for each in asked]),
            "naive linear probing": Turn(lambda: [limits.find_linear(slots, each.keys, found) for each in asked]),
        }

    dictionary = {"Python dict": Turn(lambda: [[known[key] for key in keys] for keys in wanted])}
    label, note = f"hash look-up, load {stores.LOAD}", f"the dict holds {len(known):,} keys, the index {rows:,}"
    timed = alternate(ways(uniform), scale.rounds, scale.at_least)
    yield compared(f"{label}, uniform", timed, _millions(uniform), "Mkeys/s")
    timed = alternate(ways(skewed) | dictionary, scale.rounds, scale.at_least)
    yield compared(f"{label}, Zipf", timed, _millions(skewed), "Mkeys/s", note)


def _requests(scale: Scale, rows: int, skewed: bool) -> list[RowRequest]:
    """Return requests to one of two servers for batches of 26 features; skewed ones hold the distinct ids of draws."""
    ids = scale.batch * 26 // 2
    return stores.requests(rows, min(ids * (2 if skewed else 1), rows), skewed, REQUESTS)


def _millions(asked: Sequence[RowRequest]) -> float:
    return sum(each.ids.size for each in asked) / 1e6


def _update_all(shard: Shard, asked: Sequence[RowRequest], sent: Block) -> None:
    """Update each request once, from its keys."""
    for each in asked:
        shard.update(0, each.keys, each.tables, sent[: each.ids.size], 1)


def _with_kept_rows(shard: Shard, asked: Sequence[RowRequest], sent: Block) -> Turn:
    """Return a turn that updates each request once, after a look-up that is not timed."""

    def look_up_all() -> None:
        for number, each in enumerate(asked):
            shard.look_up(0, each.keys, each.tables, 1, True, batch=number)

    def update_all() -> None:
        for number, each in enumerate(asked):
            shard.update(0, each.keys, each.tables, sent[: each.ids.size], 1, batch=number)

    return Turn(update_all, prepare=look_up_all, loops=1)


def _label(what: str, dim: int, rows: int, skewed: bool) -> str:
    millions = f"{rows / 1e6:.3g}".rstrip(".") + "M"
    return f"{what}, dim {dim}, {millions} rows, {'Zipf' if skewed else 'uniform'}"
