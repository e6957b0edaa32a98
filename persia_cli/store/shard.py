"""All rows of one embedding server: look-up, update, counters."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import WireError
from persia_cli.kernels import index, look_up, update
from persia_cli.kernels.memory import Empty
from persia_cli.kernels.rows import CODES
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, RowOptimizer, partitions_of
from persia_cli.store.row_store import MAX_SCORE, Floats, Inserted, Keys, RowStore, Tables
from persia_cli.store.wire_rows import decode_rows, row_bytes

SOME_MISSING = 1
"""What `still_fit` says of kept rows if some keys had none."""
Bytes = NDArray[np.uint8]

KEPT = 255
"""Look-ups of a group whose rows are kept for their updates; of older ones it cannot be told if rows were reused."""


@dataclass(frozen=True)
class TableCounters:
    """What a table holds on this server and what happened to it; look-ups that only read are not counted."""

    rows: int
    bytes: int
    """Memory of its rows: embedding, states, padding."""
    hits: int
    """Keys of training look-ups whose row was there."""
    misses: int
    """Keys of training look-ups whose row was not: admitted + refused + not_admitted."""
    admitted: int
    refused: int
    """Keys answered with zeros because there was no room."""
    not_admitted: int
    """Keys answered with zeros because their id is none of the share that is admitted."""
    evicted: int
    """Rows given to keys of this or another table."""
    gradients_missing: int
    """Gradients of keys that have no row."""
    gradients_refused: int
    """Gradients with a value that is not finite."""


@dataclass(frozen=True)
class KeptRows:
    """The rows that a look-up found, for the update of the same keys."""

    keys: Keys
    tables: Tables
    rows: NDArray[np.int64]
    number: int
    """Number of the look-up."""
    evictions: int
    """Rows of the group evicted up to it."""


class Shard:
    """Rows of the partitions that server `server` of `servers` owns, one row store per feature group.

    What look-ups return is made by `empty`.
    """

    def __init__(self, layout: EmbeddingLayout, server: int, servers: int, empty: Empty = np.empty) -> None:
        self.layout = layout
        self._empty = empty
        self.stores = tuple(
            RowStore(group, partitions_of(group.partitions, server, servers)) for group in layout.groups
        )
        self.salts = layout.salts()
        count = self.salts.size
        self._members = np.zeros((len(layout.groups), count), np.uint8)
        for group in layout.groups:
            self._members[group.number, [table.number for table in group.tables]] = 1
        self._counts = look_up.Counts(*np.zeros((5, count), np.int64))
        self._loaded, self._gradients_missing, self._gradients_refused = np.zeros((3, count), np.int64)
        self._births = tuple(_birth(layout, group, self.salts) for group in layout.groups)
        self._kept: tuple[OrderedDict[Hashable, KeptRows], ...] = tuple(OrderedDict() for _ in layout.groups)
        self._look_ups = [0 for _ in layout.groups]

    def look_up(
        self, group: int, keys: Keys, tables: Tables, step: int, create: bool, batch: Hashable | None = None
    ) -> Bytes:
        """uint8[n, row_bytes] embeddings of distinct keys uint64[n] and tables uint16[n], in the group's wire dtype.

        With `create`, unknown keys get a new row where they are admitted and there is room, if need be that of the
        key used least lately, and scores rise to `step`; under `batch` the rows are kept for its update. Without,
        nothing changes. Keys without a row are zeros. Raises WireError for a key or table that is not of this server
        or group, and for an impossible step.
        """
        self.check(group, keys, tables, step)
        store = self.stores[group]
        block = self._empty((keys.size, row_bytes(store.group.dim, store.group.wire)), np.uint8)
        out = block.reshape(-1).view(np.uint16)
        rows, wire = np.empty(keys.size, np.int64), CODES[store.group.wire]
        if not create:
            look_up.read_rows(store.index, store.rows, keys, tables, wire, rows, out)
            return block
        self._look_ups[group] += 1
        store.used = look_up.look_up(
            store.index, store.rows, self._births[group], self._counts, keys, tables, step,
            self._look_ups[group] % 256, store.used, wire, rows, np.empty(keys.size, np.uint64), out,
        )  # fmt: skip
        if batch is not None:
            self._keep(group, batch, keys, tables, rows)
        return block

    def values(self, group: int, keys: Keys, tables: Tables) -> Floats:
        """float32[n, dim] embeddings as a look-up that changes nothing sends them."""
        block = self.look_up(group, keys, tables, 0, create=False)
        return decode_rows(block, self.stores[group].group.dim, self.stores[group].group.wire)

    def update(
        self,
        group: int,
        keys: Keys,
        tables: Tables,
        gradients: Bytes | Floats,
        step: int,
        batch: Hashable | None = None,
    ) -> None:
        """Apply the optimizer to the rows of distinct keys, with gradients as `check_update` wants them.

        Keys without a row and gradients that are not finite are skipped and counted. Adam corrects its bias for
        update number step + 1, or the last one of the step where rows get several in each. What the batch's look-up
        kept is used where it is still right, and dropped. The caller has had `check_update` say that keys and
        gradients are in order.
        """
        store = self.stores[group]
        if gradients.dtype == np.uint8:
            gradients = decode_rows(np.ascontiguousarray(gradients), store.group.dim, store.group.wire)
        rows = self._rows_of(group, keys, tables, step, batch)
        update.UPDATES[store.group.optimizer.kind](
            store.rows, _rule(store.group.optimizer, step, self.layout.seed), keys, rows, tables,
            np.ascontiguousarray(gradients).reshape(-1), self._gradients_missing, self._gradients_refused,
        )  # fmt: skip

    def insert(
        self, group: int, keys: Keys, tables: Tables, scores: NDArray[np.int64], parts: dict[str, Floats]
    ) -> Inserted:
        """Add rows of keys that are not there yet, as a loaded checkpoint brings them (see `RowStore.read_rows`)."""
        self.check(group, keys, tables, 0)
        store = self.stores[group]
        before = store.used
        inserted = store.insert(keys, tables, scores, parts)
        self._loaded += np.bincount(store.index.tables[before : store.used], minlength=self._loaded.size)
        return inserted

    def counters(self) -> dict[str, TableCounters]:
        """Counters by table name."""
        return {
            table.name: self._counters(table.number, group.width * 4)
            for group in self.layout.groups
            for table in group.tables
        }

    def check_update(self, group: int, keys: Keys, tables: Tables, gradients: Bytes | Floats, step: int) -> None:
        """Raise WireError as `look_up` does, and for gradients that are neither float32[n, dim] nor wire rows."""
        self.check(group, keys, tables, step)
        dim, wire = self.stores[group].group.dim, self.stores[group].group.wire
        columns = row_bytes(dim, wire) if gradients.dtype == np.uint8 else dim
        if gradients.shape != (keys.size, columns):
            raise WireError(
                f"update of feature group {group} has gradients of shape {gradients.shape}, not {(keys.size, columns)}"
            )

    def check(self, group: int, keys: Keys, tables: Tables, step: int) -> None:
        """Raise WireError for a key or table that is not of this server or group, and for an impossible step."""
        if not 0 <= group < len(self.stores):
            raise WireError(f"there is no feature group {group}; this job has {len(self.stores)}")
        if keys.shape != tables.shape or keys.ndim != 1:
            raise WireError(f"feature group {group}: keys have shape {keys.shape}, tables {tables.shape}")
        if not 0 <= step <= MAX_SCORE:
            raise WireError(f"step {step} is not between 0 and {MAX_SCORE}")
        partitions = self.stores[group].partitions
        bad = index.first_foreign(
            keys, tables, self._members[group], partitions.start, self.layout.groups[group].partitions, len(partitions)
        )
        if bad >= 0:
            raise WireError(
                f"feature group {group}: key {keys[bad]:#018x} of table number {tables[bad]} does not belong to this "
                f"server's partitions {partitions.start} to {partitions.stop - 1} or to this group"
            )

    def _keep(self, group: int, batch: Hashable, keys: Keys, tables: Tables, rows: NDArray[np.int64]) -> None:
        kept = self._kept[group]
        kept[batch] = KeptRows(keys, tables, rows, self._look_ups[group], self._evicted(group))
        if len(kept) > KEPT:
            kept.popitem(last=False)

    def _rows_of(self, group: int, keys: Keys, tables: Tables, step: int, batch: Hashable | None) -> NDArray[np.int64]:
        """int64[n] rows of the keys now, from the batch's look-up as far as they are still theirs."""
        store = self.stores[group]
        kept = self._kept[group].pop(batch, None)
        if kept is not None and self._look_ups[group] - kept.number <= KEPT:
            fit = index.still_fit(keys, tables, kept.keys, kept.tables, kept.rows)
            if fit and (fit == SOME_MISSING or self._evicted(group) > kept.evictions):
                age = self._look_ups[group] - kept.number
                index.verify(store.index, keys, tables, step, kept.number % 256, age, kept.rows)
            if fit:
                return kept.rows
        rows = np.empty(keys.size, np.int64)
        index.find_and_touch(store.index, keys, tables, step, rows)
        return rows

    def _evicted(self, group: int) -> int:
        """Rows of the group evicted so far."""
        return int(self._counts.evicted[[table.number for table in self.layout.groups[group].tables]].sum())

    def _counters(self, table: int, row_bytes: int) -> TableCounters:
        hits, admitted, refused, not_admitted, evicted = (int(counts[table]) for counts in self._counts)
        rows = admitted + int(self._loaded[table]) - evicted
        return TableCounters(
            rows=rows,
            bytes=rows * row_bytes,
            hits=hits,
            misses=admitted + refused + not_admitted,
            admitted=admitted,
            refused=refused,
            not_admitted=not_admitted,
            evicted=evicted,
            gradients_missing=int(self._gradients_missing[table]),
            gradients_refused=int(self._gradients_refused[table]),
        )


def _birth(layout: EmbeddingLayout, group: GroupSpec, salts: NDArray[np.uint64]) -> look_up.Birth:
    """How new rows of a group come to be."""
    optimizer = group.optimizer
    bounds, admission = np.zeros(salts.size, np.float32), np.zeros(salts.size, np.uint64)
    for table in group.tables:
        bounds[table.number] = table.init_bound
        admission[table.number] = round(table.admission * 2**24)
    states: Any = np.zeros(3, np.float32)
    if optimizer.kind in ("adagrad", "rowwise_adagrad", "ftrl"):
        states[0] = optimizer.initial_accumulator_value
    if optimizer.kind == "ftrl":
        states[1] = optimizer.beta + sqrt(optimizer.initial_accumulator_value) + optimizer.lr * optimizer.l2
        states[2] = optimizer.lr * optimizer.l1
    return look_up.Birth(
        seed=np.uint64(layout.seed % 2**64),
        salts=salts,
        bounds=bounds,
        admission=admission,
        states=states,
        most=group.rows_per_partition,
        evict=layout.when_full == "evict",
    )


def _rule(optimizer: RowOptimizer, step: int, seed: int) -> update.Rule:
    """The optimizer at a step."""
    lr = optimizer.lr * optimizer.schedule.at(step)
    first = second = 0.0
    rate, eps = lr, optimizer.eps
    if optimizer.kind == "adam":
        count = (step + 1) * max(1, optimizer.each_step)
        correction = sqrt(1 - optimizer.beta2**count)
        rate = lr * correction / (1 - optimizer.beta1**count)
        # torch.optim.Adam adds eps to the corrected root, torch.optim.SparseAdam to the plain one.
        eps *= correction if optimizer.each_step else 1.0
        first, second = 1 - optimizer.beta1, 1 - optimizer.beta2
    elif optimizer.kind == "ftrl":
        first, second = lr * optimizer.l1, lr * optimizer.l2
    return update.Rule(
        lr=np.float32(rate),
        eps=np.float32(eps),
        first=np.float32(first),
        second=np.float32(second),
        beta=np.float32(optimizer.beta),
        weight_decay=np.float32(optimizer.weight_decay),
        clip=np.float32(optimizer.clip_norm or 0.0),
        bound=np.float32(optimizer.weight_bound or 0.0),
        plain=not (optimizer.weight_decay or optimizer.clip_norm or optimizer.weight_bound),
        noise=update.noise_of(seed, step),
    )
