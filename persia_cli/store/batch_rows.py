"""Turns the ids of a batch into the unique rows to ask each embedding server for."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import WireError
from persia_cli.kernels import dedup, hashing
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, partition_owners


@dataclass(frozen=True)
class UniqueRows:
    """Unique rows of one feature group in one batch, and where each id finds its row.

    Ids of the group lie feature-major, features in the layout's order.
    """

    keys: NDArray[np.uint64]
    """uint64[U], unique together with `tables`, by server, then by first appearance."""
    tables: NDArray[np.uint16]
    """uint16[U] table numbers."""
    bounds: NDArray[np.int64]
    """int64[S+1]: unique rows of server s are [bounds[s], bounds[s+1])."""
    inverse: NDArray[np.int32]
    """int32[ids of the group]: the unique row of each id."""
    offsets: NDArray[np.uint32] | None
    """uint32[F_g*n+1] CSR of the group's features and samples, or None when each has exactly one id."""


class RowPlanner:
    """Plans batches for one job and number of servers; keeps its scratch memory, so it belongs to one thread."""

    def __init__(self, layout: EmbeddingLayout, servers: int) -> None:
        self._layout = layout
        self._servers = servers
        self._owners = partition_owners(layout.num_partitions, servers)
        self._features = [np.array(layout.features_of(group.number), np.int64) for group in layout.groups]
        self._tables = np.array([feature.table for feature in layout.features], np.uint16)
        self._salts = layout.salts()[self._tables]
        self._scratch = dedup_scratch(0)
        self._epoch = 0

    def plan(self, ids: NDArray[np.uint64], offsets: NDArray[np.uint32], size: int) -> list[UniqueRows]:
        """Unique rows per group of a batch of `size` samples: a function of the batch alone.

        ids uint64[total] and offsets uint32[F*size+1] are the feature-major CSR of a data batch. Raises WireError
        when they do not fit each other.
        """
        expected = len(self._layout.features) * size + 1
        if offsets.size != expected or offsets[-1] > ids.size or np.any(offsets[1:] < offsets[:-1]):
            raise WireError(
                f"ids of a batch are malformed: {offsets.size} offsets where {expected} are needed, or offsets that "
                f"fall or exceed the {ids.size} ids"
            )
        return [self._plan_group(group, ids, offsets, size) for group in self._layout.groups]

    def _plan_group(
        self, group: GroupSpec, ids: NDArray[np.uint64], offsets: NDArray[np.uint32], size: int
    ) -> UniqueRows:
        features = self._features[group.number]
        total = int(np.sum(offsets[(features + 1) * size].astype(np.int64) - offsets[features * size]))
        keys, tables = np.empty(total, np.uint64), np.empty(total, np.uint16)
        group_offsets = np.empty(features.size * size + 1, np.uint32)
        single = hashing.hash_features(
            ids, offsets, size, features, self._salts[features], self._tables[features], keys, tables, group_offsets
        )
        unique_keys, unique_tables, inverse = self._unique(keys, tables)
        ordered_keys, ordered_tables = np.empty_like(unique_keys), np.empty_like(unique_tables)
        bounds = np.empty(self._servers + 1, np.int64)
        dedup.order_by_server(unique_keys, unique_tables, self._owners, inverse, ordered_keys, ordered_tables, bounds)
        return UniqueRows(ordered_keys, ordered_tables, bounds, inverse, None if single else group_offsets)

    def _unique(
        self, keys: NDArray[np.uint64], tables: NDArray[np.uint16]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint16], NDArray[np.int32]]:
        """Distinct (key, table) in order of first appearance, and each entry's number."""
        if self._scratch.size < 4 * keys.size or self._epoch == 2**32 - 1:
            self._scratch = dedup_scratch(keys.size)
            self._epoch = 0
        self._epoch += 1
        unique_keys, unique_tables = np.empty_like(keys), np.empty_like(tables)
        inverse = np.empty(keys.size, np.int32)
        count = dedup.number_keys(keys, tables, self._scratch, self._epoch, unique_keys, unique_tables, inverse)
        return unique_keys[:count], unique_tables[:count], inverse


def dedup_scratch(keys: int) -> NDArray[np.uint64]:
    """Zeroed scratch memory for deduplicating up to `keys` keys: at most half full."""
    return np.zeros(2 << max(10, (2 * keys - 1).bit_length()), np.uint64)
