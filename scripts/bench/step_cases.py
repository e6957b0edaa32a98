"""Cases of `scripts.bench kernels` for the whole embedding step of Criteo's shape, in one process and one thread."""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.machine import available_bytes
from persia_cli.bench.result import OURS, Result
from persia_cli.kernels.batch.pool import MODES, pool_backward, pool_forward
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.layout import INDEX_BYTES, OptimizerKind
from persia_cli.store.shard import Shard
from persia_cli.store.wire_rows import decode_rows, encode_rows
from scripts.bench import stores
from scripts.bench.alternate import Scale, alternate, compared
from scripts.bench.stores import CHUNK, EPS, LR, SPARE, keys_of, layout_of

BATCHES = 32
"""Number of batches in a row."""
ROOM = 1.5
"""Capacity of a store, as a multiple of the rows it will hold."""


@dataclass(frozen=True)
class Match:
    """A baseline to measure against, with the same optimizer on both sides."""

    kind: Literal["sgd", "adagrad", "rowwise_adagrad"]
    baseline: Literal["torch", "fbgemm"]


MATCHES = (
    Match("adagrad", "torch"),
    Match("sgd", "torch"),
    Match("adagrad", "fbgemm"),
    Match("rowwise_adagrad", "fbgemm"),
    Match("sgd", "fbgemm"),
)
NAMES = {"sgd": "SGD", "adagrad": "Adagrad", "rowwise_adagrad": "row-wise Adagrad"}


class EmbeddingStep:
    """The embedding step of a batch from raw ids: plan, look-up, pooling, its backward, update, without messages."""

    def __init__(self, cardinalities: Sequence[int], dim: int, kind: OptimizerKind, samples: int, rows: int) -> None:
        """Make a store for `rows` rows; each sample has one id per feature."""
        self._layout = layout_of(dim, kind, int(rows * ROOM) + 4096, len(cardinalities))
        self._planner = RowPlanner(self._layout, 1)
        self._shard = Shard(self._layout, 0, 1)
        self._modes = np.full(len(cardinalities), MODES["sum"], np.uint8)
        self._rounds = np.ones(len(cardinalities), np.int64)
        self._offsets = np.arange(samples * len(cardinalities) + 1, dtype=np.uint32)
        self._samples, self._dim, self._step = samples, dim, 0
        self._pooled = np.empty((samples, len(cardinalities), dim), np.float32)

    def ready(self, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the input of `step` for ids int64[features, samples]; this is not timed."""
        return ids.reshape(-1).astype(np.uint64)

    def step(self, ids: NDArray[np.uint64], gradient: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run forward, backward with a gradient float32[samples, features, dim], and optimizer; return pooled rows."""
        (unique,) = self._planner.plan(ids, self._offsets, self._samples)
        batch = self._step
        block = self._shard.look_up(0, unique.keys, unique.tables, batch, True, batch=batch)
        rows = decode_rows(block, self._dim, "float32")
        pool_forward(rows, unique.inverse, unique.offsets, self._modes, self._rounds, self._pooled)
        sums = np.zeros_like(rows)
        pool_backward(gradient, unique.inverse, unique.offsets, self._modes, self._rounds, sums)
        self._shard.update(0, unique.keys, unique.tables, encode_rows(sums, "float32"), batch, batch=batch)
        self._step += 1
        return self._pooled

    def fill(self, cardinalities: Sequence[int]) -> None:
        """Create the row of every id, as a table of fixed size has them."""
        for feature, values in enumerate(cardinalities):
            for start in range(0, values, CHUNK):
                self.begin(feature, np.arange(start, min(values, start + CHUNK)))

    def begin(self, feature: int, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return float32[n, dim] of distinct ids of a feature; missing rows are created."""
        block = self._shard.look_up(0, *self._keys_of(feature, ids), 0, True)
        return decode_rows(block, self._dim, "float32")

    def rows_of(self, feature: int, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return float32[n, dim] of a feature's current rows, zeros where there is no row."""
        return self._shard.values(0, *self._keys_of(feature, ids))

    def _keys_of(self, feature: int, ids: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
        table = self._layout.features[feature].table
        return keys_of(ids, table), np.full(ids.size, table, np.uint16)


def matches() -> list[Match]:
    """Return the baselines that can be measured here: FBGEMM may not be installed."""
    from persia_cli.bench.baselines.steps import has_fbgemm

    return [match for match in MATCHES if match.baseline == "torch" or has_fbgemm()]


def whole_step(scale: Scale) -> Iterator[Result]:
    """Yield the most telling cases: dim 16, 26 tables of Criteo's cardinalities, Zipf ids, not SGD.

    scripts/compare_store.py measures the rest.
    """
    small = tuple(max(3, values // 1000) for values in stores.CRITEO)
    for match in matches():
        if match.kind != "sgd":
            yield compare(scale, small if scale.quick else stores.CRITEO, 16, match, skewed=True)


def compare(
    scale: Scale, cardinalities: Sequence[int], dim: int, match: Match, skewed: bool, huge_pages: bool = False
) -> Result:
    """Time the step of one baseline and ours, with the rows of all ids present; tables too large for memory shrink."""
    from persia_cli.bench.baselines import parts
    from persia_cli.bench.baselines.steps import Fbgemm, OneBag

    gc.collect()
    parts.one_thread()
    cardinalities, note = fitting(cardinalities, dim)
    rng = np.random.default_rng(8)
    batches = [stores.batch(rng, cardinalities, scale.batch, skewed) for _ in range(BATCHES)]
    gradient = rng.standard_normal((scale.batch, len(cardinalities), dim), np.float32) * np.float32(1e-3)
    ours = EmbeddingStep(cardinalities, dim, match.kind, scale.batch, sum(cardinalities))
    ours.fill(cardinalities)
    theirs: OneBag | Fbgemm
    if match.baseline == "torch":
        assert match.kind != "rowwise_adagrad"
        theirs = OneBag(cardinalities, dim, match.kind, scale.batch, LR, EPS, huge_pages)
    else:
        theirs = Fbgemm(cardinalities, dim, match.kind, scale.batch, LR, EPS, huge_pages)
    mine, other = [ours.ready(ids) for ids in batches], [theirs.ready(ids) for ids in batches]
    outer = parts.tensor(gradient)
    units = scale.batch * len(cardinalities) * BATCHES / 1e6
    name = f"{'torch, one bag,' if match.baseline == 'torch' else 'FBGEMM'} {NAMES[match.kind]}"
    name += " on huge pages" if huge_pages else ""
    count = "1 table" if len(cardinalities) == 1 else f"{len(cardinalities)} tables"
    label = f"embedding step, {count}, {sum(cardinalities) / 1e6:.3g}M rows, dim {dim}, "
    label += f"{'Zipf' if skewed else 'uniform'}, {NAMES[match.kind]}"
    timed = alternate(
        {
            OURS: lambda: [ours.step(ids, gradient) for ids in mine],
            name: lambda: [theirs.step(ids, outer) for ids in other],
        },
        scale.rounds,
        scale.at_least,
    )
    return compared(label, timed, units, "Mids/s", note)


def fitting(cardinalities: Sequence[int], dim: int) -> tuple[Sequence[int], str]:
    """Return the cardinalities, scaled down if both sides do not fit into memory, and then a note."""
    each = 2 * 2 * dim * 4 + 2 * INDEX_BYTES
    fraction = available_bytes() * (SPARE + 0.25) / each / sum(cardinalities)
    if fraction >= 1:
        return cardinalities, ""
    smaller = tuple(max(3, int(values * fraction)) for values in cardinalities)
    return smaller, f"cardinalities scaled by {fraction:.2g} to fit the memory"
