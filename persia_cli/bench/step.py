"""The embedding step of a training batch, from raw ids to updated rows, without processes and messages."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.layouts import Kind, criteo_layout
from persia_cli.bench.stores import CHUNK
from persia_cli.bench.traffic import keys_of
from persia_cli.kernels.pool import MODES, pool_backward, pool_forward
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.shard import Shard
from persia_cli.store.wire_rows import decode_rows, encode_rows

ROOM = 1.5
"""Capacity of a store, as a multiple of the rows it will hold."""


class EmbeddingStep:
    """Everything in one process and one thread: plan, look-up, pooling, its backward, update."""

    def __init__(self, cardinalities: Sequence[int], dim: int, kind: Kind, samples: int, rows: int) -> None:
        """Make a store for `rows` rows; each sample has one id per feature."""
        self._layout = criteo_layout(dim, kind, cardinalities, int(rows * ROOM) + 4096)
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
        return keys_of(ids, table, int(self._layout.salts()[table])), np.full(ids.size, table, np.uint16)
