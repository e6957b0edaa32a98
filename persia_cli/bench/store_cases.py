"""Cases of `bench kernels` for one server's rows: look-up and update, against torch and against the memory's limits."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from persia_cli.bench import limits, stores
from persia_cli.bench.alternate import Turn, alternate
from persia_cli.bench.result import Result, Scale, faster
from persia_cli.bench.stores import Block, RowRequest
from persia_cli.store.shard import Shard

REQUESTS = 16
"""Requests in a row, which need more rows than a cache holds."""
LOOK_UP = {16: (0.95, 0.33), 64: (1.0, 0.52), 128: (1.05, 0.67)}
"""Targets by dim: against torch, against the limit."""
UPDATE = {16: (0.35, 0.80), 64: (0.65, 0.80), 128: (0.70, 0.80)}
"""Targets by dim: from keys, with rows kept."""
NO_TARGETS = (None, None)
JUDGED = 2_000_000
"""Least number of rows for which the targets hold: more than a cache holds."""
UNIT = "Mrows/s"
STEP = 10.0
"""Target of an update as a multiple of the speed of torch's sparse optimizers."""


def look_up(scale: Scale) -> Iterator[Result]:
    """Measure keys to rows, as in training: distinct keys that all have a row."""
    for dim, size in [(dim, size) for dim in scale.dims for size in scale.rows]:
        yield from _look_up(scale, dim, size)


def _look_up(scale: Scale, dim: int, size: int) -> Iterator[Result]:
    from persia_cli.bench.baselines import tables

    tables.one_thread()
    rows, note = stores.rows_that_fit(size, dim, "adagrad", beside=dim * 4)
    (shard,) = stores.filled(dim, "adagrad", rows)
    weights = tables.table(rows, dim)
    width, arena = shard.layout.groups[0].width, shard.stores[0].rows.arena

    def results(skewed: bool) -> Iterator[Result]:
        asked = _requests(scale, rows, skewed)
        most = max(each.ids.size for each in asked)
        out = np.empty(most * dim, np.float32)
        read, indices = tables.index_select(weights, most), [tables.tensor(each.ids) for each in asked]
        timed = alternate(
            {
                "ours": lambda: [shard.look_up(0, each.keys, each.tables, 1, True) for each in asked],
                "torch": lambda: [read(each) for each in indices],
                "limit": lambda: [limits.gather(arena, width, dim, each.ids, out) for each in asked],
            },
            scale.rounds,
            scale.at_least,
        )
        targets = LOOK_UP.get(dim, NO_TARGETS) if not skewed and rows >= JUDGED else NO_TARGETS
        units, label = _millions(asked), _label("look-up", dim, rows, skewed)
        yield faster(label, "torch.index_select", timed["ours"], timed["torch"], units, UNIT, targets[0], note)
        yield faster(label, "gather limit", timed["ours"], timed["limit"], units, UNIT, targets[1], note)

    yield from results(skewed=False)
    yield from results(skewed=True)


def update(scale: Scale) -> Iterator[Result]:
    """Measure Adagrad steps of rows, from their keys and from the row numbers that the look-up kept."""
    for dim, size in [(dim, size) for dim in scale.dims for size in scale.rows]:
        yield from _update(scale, dim, size)


def _update(scale: Scale, dim: int, size: int) -> Iterator[Result]:
    rows, note = stores.rows_that_fit(size, dim, "adagrad")
    (shard,) = stores.filled(dim, "adagrad", rows)
    width, arena = shard.layout.groups[0].width, shard.stores[0].rows.arena

    def results(skewed: bool) -> Iterator[Result]:
        asked = _requests(scale, rows, skewed)
        sent = stores.gradients(max(each.ids.size for each in asked), dim)
        timed = alternate(
            {
                "keys": lambda: _update_all(shard, asked, sent),
                "kept": _with_kept_rows(shard, asked, sent),
                "limit": lambda: [limits.read_modify_write(arena, width, each.ids) for each in asked],
            },
            scale.rounds,
            scale.at_least,
        )
        targets = UPDATE.get(dim, NO_TARGETS) if not skewed and rows >= JUDGED else NO_TARGETS
        units, label = _millions(asked), _label("update Adagrad", dim, rows, skewed)
        limit = "read-modify-write limit"
        yield faster(f"{label}, from keys", limit, timed["keys"], timed["limit"], units, UNIT, targets[0], note)
        yield faster(f"{label}, rows kept", limit, timed["kept"], timed["limit"], units, UNIT, targets[1], note)

    yield from results(skewed=False)
    yield from results(skewed=True)


def optimizers(scale: Scale) -> Iterator[Result]:
    """Measure updates of rows kept by the look-up against torch's sparse optimizers with a coalesced gradient."""
    for dim in scale.dims:
        yield _optimizer(scale, dim, "adagrad")
        yield _optimizer(scale, dim, "adam")


def _optimizer(scale: Scale, dim: int, kind: Literal["adagrad", "adam"]) -> Result:
    from persia_cli.bench.baselines import tables

    tables.one_thread()
    rows, note = stores.rows_that_fit(min(JUDGED, scale.rows[0]), dim, kind, beside=12 * dim)
    (shard,) = stores.filled(dim, kind, rows)
    asked = _requests(scale, rows, skewed=False)[:4]
    sent = stores.gradients(max(each.ids.size for each in asked), dim)
    baseline = tables.SparseStep(kind, rows, dim)
    held = [baseline.gradient(each.ids, sent.view(np.float32)[: each.ids.size]) for each in asked]
    timed = alternate(
        {
            "ours": _with_kept_rows(shard, asked, sent),
            "torch": lambda: baseline.steps(held),
        },
        scale.rounds,
        scale.at_least,
    )
    name = {"adagrad": "Adagrad", "adam": "SparseAdam"}[kind]
    label = _label(f"update {name}", dim, rows, False)
    return faster(label, f"torch.optim.{name}", timed["ours"], timed["torch"], _millions(asked), UNIT, STEP, note)


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
