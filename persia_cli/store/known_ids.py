"""The counts of look-ups by table and feature: all of them, and those that found a row."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from persia_cli.store.batch_rows import UniqueRows
from persia_cli.store.layout import EmbeddingLayout
from persia_cli.store.table_counters import known_of, reads_of


class KnownIds:
    """The counts of an embedding worker's answered look-ups; an id counts as often as it occurs in a batch.

    An id of a hash stack counts once per round. Training is counted as `look_ups` and `look_ups_known`, evaluation and
    prediction as `reads` and `reads_known`; the latter for each feature too (`reads_of` and `known_of`), unless its
    table has its name and no other feature.
    """

    def __init__(self, layout: EmbeddingLayout) -> None:
        names = {table.number: table.name for table in layout.tables()}
        self._tables = [
            [names[layout.features[feature].table] for feature in layout.features_of(group.number)]
            for group in layout.feature_groups
        ]
        read = Counter(feature.table for feature in layout.features)
        self._apart = [
            [
                None if read[feature.table] == 1 and feature.name == names[feature.table] else feature.name
                for feature in map(layout.features.__getitem__, layout.features_of(group.number))
            ]
            for group in layout.feature_groups
        ]
        """For each group the names of its features, None for those that have no counts of their own."""
        self._counts: dict[str, Counter[str]] = {name: Counter() for names in self._tables for name in names}

    def add(
        self, groups: Sequence[UniqueRows], unknown: Sequence[Sequence[NDArray[np.uint32]]], train: bool
    ) -> tuple[int, int]:
        """Count a batch; returns the number of its look-ups, and of those that found no row.

        unknown[s][g] are the positions of server s's keys of group g that had no row.
        """
        name, all_entries, all_missed = "look_ups" if train else "reads", 0, 0
        for number, tables in enumerate(self._tables):
            rows = groups[number]
            ends = _ends(rows, len(tables))
            entries = np.diff(ends, prepend=0)
            missed = _missed(rows, [of_server[number] for of_server in unknown], ends)
            all_entries, all_missed = all_entries + int(entries.sum()), all_missed + int(missed.sum())
            found = zip(tables, self._apart[number], entries.tolist(), missed.tolist(), strict=True)
            for table, feature, total, without in found:
                self._counts[table][name] += total
                self._counts[table][f"{name}_known"] += total - without
                if feature is not None and not train:
                    self._counts[table][reads_of(feature)] += total
                    self._counts[table][known_of(feature)] += total - without
        return all_entries, all_missed

    def figures(self) -> dict[str, dict[str, int]]:
        """Return the counts so far by table."""
        return {table: dict(counts) for table, counts in self._counts.items()}


def _ends(rows: UniqueRows, features: int) -> NDArray[np.int64]:
    """Return the end of the entries of each feature in `inverse`, int64[features]."""
    if rows.offsets is None:
        return np.arange(1, features + 1) * (rows.inverse.size // features)
    return rows.offsets[:: (rows.offsets.size - 1) // features][1:].astype(np.int64)


def _missed(rows: UniqueRows, unknown: Sequence[NDArray[np.uint32]], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of entries of each feature whose key had no row, int64[features]."""
    if not any(places.size for places in unknown):
        return np.zeros(ends.size, np.int64)
    is_unknown = np.zeros(rows.keys.size, np.int8)
    for places, start in zip(unknown, rows.bounds[:-1], strict=True):
        is_unknown[places + start] = 1
    missed = np.concatenate([[0], np.cumsum(is_unknown[rows.inverse], dtype=np.int64)])
    return np.diff(missed[ends], prepend=0)
