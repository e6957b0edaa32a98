"""The unique rows of a batch's ids, by embedding server, and the sums of several ranks' gradients for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import WireError
from persia_cli.kernels.batch import dedup
from persia_cli.kernels.rows import hashing
from persia_cli.kernels.toolchain.memory import Empty
from persia_cli.store.layout import NEGATIVES, EmbeddingLayout, GroupSpec, Wire, partition_owners, partitions_of_keys
from persia_cli.store.wire_rows import decode_into

MAX_ENTRIES = 2**31 - 1
"""Largest number of rows that the ids of a group may use in one batch, since `inverse` is int32."""
RankGradients = tuple[NDArray[np.uint64], NDArray[np.uint16], NDArray[np.uint8]]
"""Distinct keys uint64[n] with tables uint16[n], and their encoded gradients uint8[n, bytes of a row]."""
Merged = tuple[NDArray[np.uint64], NDArray[np.uint16], NDArray[np.uint8] | NDArray[np.float32]]
"""Distinct keys with tables, and gradients: float32 sums [n, dim], or the encoded ones of a single part."""


@dataclass(frozen=True)
class UniqueRows:
    """The unique rows of one feature group in one batch, and the row of each id among them.

    Ids of the group are feature-major, with features in the layout's order. An id of a hash stack has one entry per
    round of the stack, in a row; any other id has one entry.
    """

    keys: NDArray[np.uint64]
    """uint64[U], unique together with `tables`: ordered by server, then table, then first appearance."""
    tables: NDArray[np.uint16]
    """uint16[U] table numbers."""
    bounds: NDArray[np.int64]
    """int64[S+1]: unique rows of server s are [bounds[s], bounds[s+1])."""
    inverse: NDArray[np.int32]
    """int32[entries of the group]: the unique row of each."""
    offsets: NDArray[np.uint32] | None
    """uint32[F_g*n+1] CSR of the group's features and samples, or None if each has exactly one entry."""
    drawn: NDArray[np.int64] | None = None
    """int64[S]: how many unique rows of each server only drawn negatives have; they are its last. None without any."""


class RowPlanner:
    """The planner of batches for one job and number of servers; it has scratch memory, so it belongs to one thread.

    `empty` allocates the arrays of its plans.
    """

    def __init__(self, layout: EmbeddingLayout, servers: int, empty: Empty = np.empty) -> None:
        self._groups = [_GroupPlanner(layout, group, servers, empty) for group in layout.feature_groups]
        self._features = len(layout.features)
        self._ones = np.empty(0, np.uint32)

    def plan(self, ids: NDArray[np.uint64], offsets: NDArray[np.uint32] | None, size: int) -> list[UniqueRows]:
        """Return the unique rows of a batch of `size` samples, by feature group: a function of the batch alone.

        ids uint64[total] and offsets uint32[F*size+1] are the feature-major CSR of a data batch; None stands for
        offsets that are 0, 1, 2 and so on. Raises WireError if they do not fit each other, or use more than 2^31 - 1
        rows of a group.
        """
        if offsets is None:
            if self._ones.size != ids.size + 1:
                self._ones = np.arange(ids.size + 1, dtype=np.uint32)
            offsets = self._ones
        expected = self._features * size + 1
        single = np.empty(self._features, np.bool_)
        if offsets.size != expected or offsets[-1] > ids.size or not hashing.check_offsets(offsets, size, single):
            raise WireError(
                f"the ids of a batch are malformed: there are {offsets.size} offsets, and {expected} are needed; or "
                f"offsets decrease or exceed the {ids.size} ids"
            )
        return [group.plan(ids, offsets, size, single) for group in self._groups]


class _GroupPlanner:
    """The planner of one feature group; its scratch memory only grows."""

    def __init__(self, layout: EmbeddingLayout, group: GroupSpec, servers: int, empty: Empty) -> None:
        self._features = np.array(layout.features_of(group.number), np.int64)
        tables = {table.number: table for table in group.tables}
        read = [tables[layout.features[feature].table] for feature in self._features]
        self._rows = np.array([table.rounds or 1 for table in read], np.int64)
        self._draws = any(layout.features[feature].pooling == NEGATIVES for feature in self._features)
        # Features are numbered table by table: each table has its own epoch of the scratch table. That of drawn
        # negatives, the last feature, comes last.
        distinct = sorted(dict.fromkeys(read), key=lambda table: self._draws and table is read[-1])
        self._order = np.array(sorted(range(len(read)), key=lambda feature: distinct.index(read[feature])), np.int64)
        read = [read[feature] for feature in self._order]
        self._table = np.array([distinct.index(table) for table in read], np.int64)
        self._tables = np.array([table.number for table in read], np.uint16)
        self._salts = np.array([table.salt for table in read], np.uint64)
        self._rounds = np.array([table.rounds for table in read], np.int64)
        self._sizes = np.array([table.size for table in read], np.uint64)
        self._name = f"features {', '.join(layout.features[feature].name for feature in self._features)}"
        self._servers = servers
        self._empty = empty
        self._owners = partition_owners(group.partitions, servers)
        self._chunk = np.empty(dedup.CHUNK * int(self._rows.max(initial=1)), np.uint64)
        self._unique, self._epoch = unique_keys(0), 0
        self._renumbered = np.empty(0, np.int32)

    def plan(
        self, ids: NDArray[np.uint64], offsets: NDArray[np.uint32], size: int, single: NDArray[np.bool_]
    ) -> UniqueRows:
        """Return the unique rows of a checked batch; `single` marks features with one id in every sample."""
        firsts, lasts = offsets[self._features * size].astype(np.int64), offsets[(self._features + 1) * size]
        entries = (lasts - firsts) * self._rows
        total = int(entries.sum())
        if total > MAX_ENTRIES:
            raise WireError(f"the ids of {self._name} need {total} rows in one batch; use a smaller train.batch_size")
        inverse = self._empty((total,), np.int32)
        count = self._number(ids, firsts, lasts.astype(np.int64), entries, inverse)
        keys, tables, bounds = self._by_server(count, inverse)
        drawn = None
        if self._draws:
            is_drawn = np.ones(count, np.int64)
            is_drawn[inverse[: total - entries[-1]]] = 0
            drawn = np.diff(np.concatenate([[0], np.cumsum(is_drawn)])[bounds])
        if single[self._features].all() and (self._rows == 1).all():
            return UniqueRows(keys, tables, bounds, inverse, None, drawn)
        rebased = self._empty((self._features.size * size + 1,), np.uint32)
        hashing.rebase_offsets(offsets, size, self._features, self._rows, rebased)
        return UniqueRows(keys, tables, bounds, inverse, rebased, drawn)

    def _number(
        self,
        ids: NDArray[np.uint64],
        firsts: NDArray[np.int64],
        lasts: NDArray[np.int64],
        entries: NDArray[np.int64],
        inverse: NDArray[np.int32],
    ) -> int:
        """Fill `inverse` and the scratch arrays of unique keys and tables; returns the number of unique keys."""
        order = self._order
        starts = np.cumsum(entries) - entries
        slots = [dedup_slots(int(entries_of_table)) for entries_of_table in np.bincount(self._table, entries[order])]
        epochs = self._epochs(len(slots), max(slots, default=0))
        self._grow(inverse.size)
        masks = np.array(slots, np.uint64) - np.uint64(1)
        features = dedup.FeatureIds(
            firsts[order], lasts[order], starts[order],
            self._tables, self._salts, self._rounds, self._sizes, epochs[self._table], masks[self._table],
        )  # fmt: skip
        return int(dedup.number_ids(ids, features, self._chunk, self._unique, inverse))

    def _epochs(self, count: int, slots: int) -> NDArray[np.uint64]:
        """Return `count` epochs that no word of the scratch table has; the table gets at least `slots` slots."""
        scratch = self._unique.scratch
        if scratch.size < slots or self._epoch + count >= 2**32:
            scratch, self._epoch = np.zeros(max(slots, scratch.size), np.uint64), 0
            self._unique = self._unique._replace(scratch=scratch)
        self._epoch += count
        return np.arange(self._epoch - count + 1, self._epoch + 1, dtype=np.uint64)

    def _grow(self, entries: int) -> None:
        if entries > self._renumbered.size:
            self._unique = self._unique._replace(keys=np.empty(entries, np.uint64), tables=np.empty(entries, np.uint16))
            self._renumbered = np.empty(entries, np.int32)

    def _by_server(
        self, count: int, inverse: NDArray[np.int32]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint16], NDArray[np.int64]]:
        """Return copies of the unique keys and tables, ordered by server, and the bounds of the servers."""
        keys, tables = self._unique.keys[:count], self._unique.tables[:count]
        ordered_keys, ordered_tables = self._empty((count,), np.uint64), self._empty((count,), np.uint16)
        if self._servers == 1:
            ordered_keys[...], ordered_tables[...] = keys, tables
            return ordered_keys, ordered_tables, np.array([0, count], np.int64)
        bounds = np.empty(self._servers + 1, np.int64)
        dedup.order_by_server(
            keys, tables, self._owners, self._renumbered, inverse, ordered_keys, ordered_tables, bounds
        )
        return ordered_keys, ordered_tables, bounds


def dedup_slots(keys: int) -> int:
    """Return the slots of a scratch table for up to `keys` keys: a power of two, with at most a quarter in use."""
    return 1 << max(10, (4 * keys - 1).bit_length())


def unique_keys(keys: int) -> dedup.UniqueKeys:
    """Return the memory to deduplicate up to `keys` keys; its scratch table is empty in every epoch but 0."""
    scratch = np.zeros(dedup_slots(keys), np.uint64)
    return dedup.UniqueKeys(scratch, np.empty(keys, np.uint64), np.empty(keys, np.uint16))


def merge_gradients(parts: Sequence[RankGradients], dim: int, wire: Wire) -> Merged:
    """Return float32 sums per (key, table), added in the order of parts and listed in order of first appearance.

    A single part is returned unchanged. Raises ValueError if there are no parts, or if the size of gradients is not
    that
    of rows of `dim` columns in the wire dtype.
    """
    if not parts:
        raise ValueError("there is nothing to merge")
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([keys for keys, _, _ in parts])
    tables = np.concatenate([tables for _, tables, _ in parts])
    gradients = np.empty((keys.size, dim), np.float32)
    decode_into([gradients for _, _, gradients in parts], dim, wire, gradients)
    unique, inverse = unique_keys(keys.size), np.empty(keys.size, np.int32)
    count = dedup.number_keys(keys, tables, 1, unique, inverse)
    sums = np.zeros((count, dim), np.float32)
    dedup.add_rows(gradients.reshape(-1), inverse, dim, sums.reshape(-1))
    return unique.keys[:count].copy(), unique.tables[:count].copy(), sums


def dense_rows(group: GroupSpec, servers: int, count: int) -> UniqueRows:
    """Return the rows of ids 0 to `count` - 1 of the reserved table: by server, then by id.

    `inverse` int32[count] is the position of each id's row among those of all servers.
    """
    table = group.tables[0]
    numbers = np.full(count, table.number, np.uint16)
    salts = np.zeros(table.number + 1, np.uint64)
    salts[table.number] = table.salt
    keys = np.empty(count, np.uint64)
    hashing.hash_ids(np.arange(count, dtype=np.uint64), numbers, salts, keys)
    owners = partition_owners(group.partitions, servers)[partitions_of_keys(keys, group.partitions)]
    order = np.argsort(owners, kind="stable")
    inverse = np.empty(count, np.int32)
    inverse[order] = np.arange(count, dtype=np.int32)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=servers))]).astype(np.int64)
    return UniqueRows(keys[order], numbers, bounds, inverse, None)
