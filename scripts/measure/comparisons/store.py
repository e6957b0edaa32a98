"""The whole embedding step of a batch, against torch and FBGEMM, in one process and one thread.

    python -m scripts.measure store                            # all comparisons, about half an hour
    python -m scripts.measure store --only criteo --dims 16

Ours does all that a batch needs from raw 64-bit ids: deduplication, look-up, pooling, its backward, update. torch
(`EmbeddingBag(sparse=True)`, all tables in one bag) and FBGEMM (`SplitTableBatchedEmbeddingBags`) get row numbers below
fixed table sizes. Before anything is timed, some steps of small tables must give the same weights on both sides.

FBGEMM is in the group `compare`: `pip install --group compare`, in a checkout. Without it, ours is compared with torch.
"""

import gc
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.machine import available_bytes
from persia_cli.bench.result import OURS, Result
from persia_cli.errors import PersiaError
from persia_cli.kernels.batch.pool import MODES, pool_backward, pool_forward
from persia_cli.kernels.toolchain.memory import retain_freed_memory
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.layout import INDEX_BYTES
from persia_cli.store.shard import Shard
from persia_cli.store.wire_rows import decode_rows, encode_rows
from scripts.measure import CRITEO, Given, Note, stores
from scripts.measure.stores import EPS, LR
from scripts.measure.timing import alternate, compared

if TYPE_CHECKING:
    from scripts.measure.embedding_steps import Fbgemm, OneBag

SHAPES: dict[str, tuple[int, ...]] = {"criteo": CRITEO, "10M": (10_000_000,), "1M": (1_000_000,)}
"""Rows of the tables, by the name of the comparison."""
BATCHES = 32
"""Number of batches in a row."""
ROOM = 1.5
"""Capacity of a store, as a multiple of the rows it will hold."""
SMALL = (3, 50, 400, 1000)
"""Table sizes on which agreement is checked."""
STEPS, SAMPLES, TOLERANCE = 5, 256, 1e-5
Kind = Literal["sgd", "adagrad", "rowwise_adagrad"]
NAMES = {"sgd": "SGD", "adagrad": "Adagrad", "rowwise_adagrad": "row-wise Adagrad"}


class Match(NamedTuple):
    """A baseline to measure against, with the same optimizer on both sides."""

    kind: Kind
    baseline: Literal["torch", "fbgemm"]


MATCHES = (
    Match("adagrad", "torch"),
    Match("sgd", "torch"),
    Match("adagrad", "fbgemm"),
    Match("rowwise_adagrad", "fbgemm"),
    Match("sgd", "fbgemm"),
)


class EmbeddingStep:
    """The embedding step of a batch from raw ids: plan, look-up, pooling, its backward, update, without messages."""

    def __init__(self, cardinalities: Sequence[int], dim: int, kind: Kind, samples: int) -> None:
        """Make a store with the row of every id, as tables of fixed size have them; one id per feature and sample."""
        self._layout = stores.layout_of(dim, kind, int(sum(cardinalities) * ROOM) + 4096, len(cardinalities))
        self._planner = RowPlanner(self._layout, 1)
        self._shard = Shard(self._layout, 0, 1)
        self._modes = np.full(len(cardinalities), MODES["sum"], np.uint8)
        self._divisors = np.ones(len(cardinalities), np.int64)
        self._offsets = np.arange(samples * len(cardinalities) + 1, dtype=np.uint32)
        self._samples, self._dim, self._step = samples, dim, 0
        self._pooled = np.empty((samples, len(cardinalities), dim), np.float32)
        for feature, values in enumerate(cardinalities):
            for start in range(0, values, stores.CHUNK):
                ids = np.arange(start, min(values, start + stores.CHUNK))
                self._shard.look_up(0, *self._keys_of(feature, ids), 0, True)

    def ready(self, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the input of `step` for ids int64[features, samples]; this is not timed."""
        return ids.reshape(-1).astype(np.uint64)

    def step(self, ids: NDArray[np.uint64], gradient: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run forward, backward with a gradient float32[samples, features, dim], and optimizer; return pooled rows."""
        (unique,) = self._planner.plan(ids, self._offsets, self._samples)
        batch = self._step
        block = self._shard.look_up(0, unique.keys, unique.tables, batch, True, batch=batch)
        rows = decode_rows(block, self._dim, "float32")
        pool_forward(rows, unique.inverse, unique.offsets, self._modes, self._divisors, self._pooled)
        sums = np.zeros_like(rows)
        pool_backward(gradient, unique.inverse, unique.offsets, self._modes, self._divisors, sums)
        self._shard.update(0, unique.keys, unique.tables, encode_rows(sums, "float32"), batch, batch=batch)
        self._step += 1
        return self._pooled

    def rows_of(self, feature: int, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return float32[n, dim] of a feature's current rows."""
        return self._shard.values(0, *self._keys_of(feature, ids))

    def _keys_of(self, feature: int, ids: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
        table = self._layout.features[feature].table
        return stores.keys_of(ids, table), np.full(ids.size, table, np.uint16)


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("--only", metavar="SHAPE", choices=SHAPES, help=f"one of {', '.join(SHAPES)}")
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--batch", type=int, default=stores.BATCH, help="samples")
    parser.set_defaults(rounds=9)


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Check the values, then measure every table shape, dim, kind of ids and baseline."""
    import torch

    from scripts.measure.embedding_steps import has_fbgemm

    torch.set_num_threads(1)
    retain_freed_memory()
    matches = [match for match in MATCHES if match.baseline == "torch" or has_fbgemm()]
    if not has_fbgemm():
        note("FBGEMM is not installed (pip install --group compare): comparing with torch only")
    for dim, match in product(given.dims, matches):
        note(f"{match.baseline} {NAMES[match.kind]}, dim {dim}: weights agree to {greatest_difference(dim, match):.1g}")
    for shape, dim in product([given.only] if given.only else SHAPES, given.dims):
        cardinalities = SHAPES[shape]
        if given.quick:
            cardinalities = tuple(max(3, values // 1000) for values in cardinalities)
        # A batch of one table has as many ids as one of all of Criteo's tables.
        samples = (256 if given.quick else given.batch) * 26 // len(cardinalities)
        for skewed, match in product((True, False), matches):
            yield replace(_measure(given.rounds, cardinalities, dim, samples, match, skewed), case=shape)


def greatest_difference(dim: int, match: Match) -> float:
    """Return the greatest difference of any weight after some steps from the same start.

    Raises PersiaError if it is too great.
    """
    import torch

    from scripts.measure.embedding_steps import Fbgemm

    rng = np.random.default_rng(11)
    ours, theirs = EmbeddingStep(SMALL, dim, match.kind, SAMPLES), _baseline(SMALL, dim, SAMPLES, match)
    weights = (
        theirs.weights()
        if isinstance(theirs, Fbgemm)
        else [*torch.split(torch.from_numpy(theirs.weights), list(SMALL))]
    )
    for feature, other in enumerate(weights):
        other[...] = torch.from_numpy(ours.rows_of(feature, np.arange(SMALL[feature])))
    greatest = 0.0
    for _ in range(STEPS):
        ids = stores.batch(rng, SMALL, SAMPLES, skewed=True)
        gradient = rng.standard_normal((SAMPLES, len(SMALL), dim), np.float32)
        pooled = theirs.step(theirs.ready(ids), torch.from_numpy(gradient)).detach().numpy()
        greatest = max(greatest, float(np.abs(ours.step(ours.ready(ids), gradient) - pooled).max()))
    for feature, other in enumerate(weights):
        rows = ours.rows_of(feature, np.arange(SMALL[feature]))
        greatest = max(greatest, float(np.abs(rows - other.detach().numpy()).max()))
    if not greatest <= TOLERANCE:
        raise PersiaError(
            f"{match.baseline} {NAMES[match.kind]}, dim {dim}: weights differ by {greatest:.2g} after {STEPS} steps, "
            f"which is more than {TOLERANCE:g}; nothing was timed, because the results are wrong"
        )
    return greatest


def _baseline(cardinalities: Sequence[int], dim: int, samples: int, match: Match) -> "OneBag | Fbgemm":
    from scripts.measure.embedding_steps import Fbgemm, OneBag

    if match.baseline == "fbgemm":
        return Fbgemm(cardinalities, dim, match.kind, samples, LR, EPS)
    assert match.kind != "rowwise_adagrad"
    return OneBag(cardinalities, dim, match.kind, samples, LR, EPS)


def _measure(rounds: int, cardinalities: Sequence[int], dim: int, samples: int, match: Match, skewed: bool) -> Result:
    """Time the step of one baseline and ours, with the rows of all ids present; tables too large for memory shrink."""
    import torch

    gc.collect()
    cardinalities, scaled = _fitting(cardinalities, dim)
    rng = np.random.default_rng(8)
    batches = [stores.batch(rng, cardinalities, samples, skewed) for _ in range(BATCHES)]
    gradient = rng.standard_normal((samples, len(cardinalities), dim), np.float32) * np.float32(1e-3)
    ours, theirs = EmbeddingStep(cardinalities, dim, match.kind, samples), _baseline(cardinalities, dim, samples, match)
    mine, other = [ours.ready(ids) for ids in batches], [theirs.ready(ids) for ids in batches]
    outer = torch.from_numpy(gradient)
    side = f"{'torch, one bag,' if match.baseline == 'torch' else 'FBGEMM'} {NAMES[match.kind]}"
    tables = "1 table" if len(cardinalities) == 1 else f"{len(cardinalities)} tables"
    name = f"embedding step, {tables}, {stores.label(sum(cardinalities))}, dim {dim}, "
    name += f"{'Zipf' if skewed else 'uniform'}, {NAMES[match.kind]}"
    timed = alternate(
        {
            OURS: lambda: [ours.step(ids, gradient) for ids in mine],
            side: lambda: [theirs.step(ids, outer) for ids in other],
        },
        rounds,
    )
    return compared(name, timed, samples * len(cardinalities) * BATCHES / 1e6, "Mids/s", scaled)


def _fitting(cardinalities: Sequence[int], dim: int) -> tuple[Sequence[int], str]:
    """Return the cardinalities, scaled down if both sides do not fit into memory, and then a note."""
    each = 2 * 2 * dim * 4 + 2 * INDEX_BYTES
    fraction = available_bytes() * (stores.SPARE + 0.25) / each / sum(cardinalities)
    if fraction >= 1:
        return cardinalities, ""
    smaller = tuple(max(3, int(values * fraction)) for values in cardinalities)
    return smaller, f"cardinalities scaled by {fraction:.2g} to fit the memory"
