"""All rows of one embedding server: look-up, update, counters."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import WireError
from persia_cli.kernels import hashing, index, update
from persia_cli.store.layout import EmbeddingLayout, partitions_of
from persia_cli.store.row_store import MAX_SCORE, RowStore

Keys = NDArray[np.uint64]
Tables = NDArray[np.uint16]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TableCounters:
    """What a table holds on this server and what happened to it; look-ups that only read are not counted."""

    rows: int
    bytes: int
    """Memory of its rows: embedding, states, padding."""
    hits: int
    """Keys of training look-ups whose row was there."""
    misses: int
    """Keys of training look-ups whose row was not: created + refused."""
    created: int
    refused: int
    """Keys answered with zeros because the group was full."""
    gradients_missing: int
    """Gradients of keys that have no row."""
    gradients_refused: int
    """Gradients with a value that is not finite."""


class Shard:
    """Rows of the partitions that server `server` of `servers` owns, one row store per feature group."""

    def __init__(self, layout: EmbeddingLayout, server: int, servers: int) -> None:
        self.layout = layout
        self.partitions = partitions_of(layout.num_partitions, server, servers)
        self.stores = tuple(RowStore(group, self.partitions, layout.num_partitions) for group in layout.groups)
        self.salts = layout.salts()
        count = self.salts.size
        self._bounds = np.zeros(count, np.float32)
        self._members = np.zeros((len(layout.groups), count), np.uint8)
        for number, group in enumerate(layout.groups):
            for table in group.tables:
                self._bounds[table.number] = table.init_bound
                self._members[number, table.number] = 1
        self._hits, self._created, self._refused, self._loaded = np.zeros((4, count), np.int64)
        self._gradients_missing, self._gradients_refused = np.zeros((2, count), np.int64)

    def look_up(self, group: int, keys: Keys, tables: Tables, step: int, create: bool) -> Floats:
        """float32[n, dim] embeddings of keys uint64[n] and tables uint16[n].

        With `create`, unknown keys get a new row (zeros and a count when the group is full) and scores rise to
        `step`. Without, nothing changes and unknown keys are zeros. Raises WireError for a key or table that is not
        of this server or group, and for an impossible step.
        """
        self.check(group, keys, tables, step)
        store = self.stores[group]
        if not create:
            return store.gather(store.find(keys, tables))
        rows, new = store.find_or_create(keys, tables, step, self._hits, self._created, self._refused)
        optimizer, seed = store.group.optimizer, np.uint64(self.layout.seed % 2**64)
        start = optimizer.initial_accumulator_value if optimizer.kind == "adagrad" else 0.0
        hashing.fill_new_rows(
            store.arena, store.width, store.group.dim, len(optimizer.states), new, rows, keys, tables, seed,
            self.salts, self._bounds, start,
        )  # fmt: skip
        return store.gather(rows)

    def update(self, group: int, keys: Keys, tables: Tables, gradients: Floats, step: int) -> None:
        """Apply the optimizer to the rows of distinct keys with gradients float32[n, dim].

        Keys without a row and gradients that are not finite are skipped and counted. Adam corrects its bias for
        update number step + 1. Raises WireError as `check_update` does.
        """
        self.check_update(group, keys, tables, gradients, step)
        store = self.stores[group]
        dim = store.group.dim
        flat = np.ascontiguousarray(gradients).reshape(-1)
        rows = store.find(keys, tables)
        update.screen_gradients(
            rows, tables, flat.view(np.uint32), dim, store.info, step, self._gradients_missing, self._gradients_refused
        )
        _optimize(store, rows, flat, step)

    def check_update(self, group: int, keys: Keys, tables: Tables, gradients: Floats, step: int) -> None:
        """Raise WireError as `look_up` does, and for gradients of another shape than float32[n, dim]."""
        self.check(group, keys, tables, step)
        shape = (keys.size, self.stores[group].group.dim)
        if gradients.shape != shape:
            raise WireError(f"update of feature group {group} has gradients of shape {gradients.shape}, not {shape}")

    def insert(self, group: int, keys: Keys, tables: Tables, scores: NDArray[np.int64], values: Floats) -> int:
        """Add rows float32[n, (1 + states) * dim] of keys that are not there yet, as a loaded checkpoint brings them.

        Returns how many were added: fewer than n when a key was there already or the group is full.
        """
        self.check(group, keys, tables, 0)
        store = self.stores[group]
        nowhere = np.zeros_like(self._hits)
        rows, new = store.find_or_create(keys, tables, 0, nowhere, self._loaded, nowhere)
        store.values()[rows[new], : values.shape[1]] = values[new]
        store.values()[rows[new], values.shape[1] :] = 0.0
        store.set_scores(rows[new], scores[new])
        return int(new.size)

    def counters(self) -> dict[str, TableCounters]:
        """Counters by table name."""
        return {
            table.name: self._counters(table.number, group.width * 4)
            for group in self.layout.groups
            for table in group.tables
        }

    def _counters(self, table: int, row_bytes: int) -> TableCounters:
        created, refused = int(self._created[table]), int(self._refused[table])
        rows = created + int(self._loaded[table])
        return TableCounters(
            rows=rows,
            bytes=rows * row_bytes,
            hits=int(self._hits[table]),
            misses=created + refused,
            created=created,
            refused=refused,
            gradients_missing=int(self._gradients_missing[table]),
            gradients_refused=int(self._gradients_refused[table]),
        )

    def check(self, group: int, keys: Keys, tables: Tables, step: int) -> None:
        """Raise WireError for a key or table that is not of this server or group, and for an impossible step."""
        if not 0 <= group < len(self.stores):
            raise WireError(f"there is no feature group {group}; this job has {len(self.stores)}")
        if keys.shape != tables.shape or keys.ndim != 1:
            raise WireError(f"feature group {group}: keys have shape {keys.shape}, tables {tables.shape}")
        if not 0 <= step <= MAX_SCORE:
            raise WireError(f"step {step} is not between 0 and {MAX_SCORE}")
        store = self.stores[group]
        bad = index.first_foreign(keys, tables, self._members[group], store.first, store.span)
        if bad >= 0:
            raise WireError(
                f"feature group {group}: key {keys[bad]:#018x} of table number {tables[bad]} does not belong to this "
                f"server's partitions {self.partitions.start} to {self.partitions.stop - 1} or to this group"
            )


def _optimize(store: RowStore, rows: NDArray[np.int64], gradients: Floats, step: int) -> None:
    """Run the group's optimizer over rows (-1: skip) and flat gradients."""
    optimizer = store.group.optimizer
    arguments = (store.arena, store.width, store.group.dim, rows, gradients)
    if optimizer.kind == "sgd":
        update.sgd(*arguments, optimizer.lr)
    elif optimizer.kind == "adagrad":
        update.adagrad(*arguments, optimizer.lr, optimizer.eps)
    else:
        correction1, correction2 = 1 - optimizer.beta1 ** (step + 1), 1 - optimizer.beta2 ** (step + 1)
        step_size = optimizer.lr * sqrt(correction2) / correction1
        update.adam(*arguments, step_size, 1 - optimizer.beta1, 1 - optimizer.beta2, optimizer.eps)
