"""The rows that have changed since a base was exported: deltas are merged into one overlay, which servers map.

For each group, an overlay has the sorted keys of every table, and the place of each key's row in a file of values; a
deleted key has none. Keys and places are written anew for each version. Values are appended to a file that versions
have in common, so a new version needs few new pages. A full file is replaced by one with the rows that are still used,
so it has at most twice the rows that have changed.
"""

import secrets
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from persia_cli.disk import link_briefly
from persia_cli.errors import CheckpointError, one_line
from persia_cli.kernels.rows.hashing import hash_ids
from persia_cli.kernels.serving.frozen_index import KEYS, WORDS, fill_buckets
from persia_cli.serving.description import ROWS, FrozenGroup, FrozenTable, overlay_files
from persia_cli.serving.row_writer import TableRules, encoded, planned_group

DELETED = -1
"""The place of a row that was deleted."""
MIN_ROWS = 2**12
"""Rows for which a file of values has space, at least."""
CHUNK = 2**16
"""Rows that are copied at once."""


class TableChanges(NamedTuple):
    """The rows of a table in a delta."""

    keys: NDArray[np.uint64]
    """[n], ascending."""
    deleted: NDArray[np.bool_]
    """[n]"""
    rows: NDArray[np.float32]
    """[m, dim]: the rows of the keys that are not deleted, in their order."""


def rows_file(group: int) -> str:
    """Return the path of a group's changed rows in the folder of a delta."""
    return f"{ROWS}/{group}.parquet"


def read_changes(path: Path, group: FrozenGroup) -> list[TableChanges]:
    """Return the changed rows of each table of a group; raises CheckpointError for a file that has none."""
    kinds = {"id": pa.uint64(), "deleted": pa.bool_(), "embedding": pa.list_(pa.float32(), group.dim)}
    try:
        content = pq.read_table(path, columns=["table", *kinds])
        names = content.column("table").cast(pa.string()).combine_chunks().dictionary_encode()
        ids, gone, embedding = (content.column(name).cast(kind).combine_chunks() for name, kind in kinds.items())
        live = embedding.filter(pc.invert(gone))
        known = {table.name: number for number, table in enumerate(group.tables)}
        numbers = np.array([known[name] for name in names.dictionary.to_pylist()], np.uint16)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise CheckpointError(f"{path} has no changed rows of this model: {one_line(error)}; publish anew") from error
    tables = numbers[names.indices.to_numpy()] if len(ids) else np.empty(0, np.uint16)
    keys = np.empty(len(ids), np.uint64)
    hash_ids(ids.to_numpy(), tables, np.array([table.salt for table in group.tables], np.uint64), keys)
    rows, deleted = live.flatten().to_numpy().reshape(-1, group.dim), gone.to_numpy(zero_copy_only=False)
    changes, row_of = [], np.cumsum(~deleted) - 1
    for number in range(len(group.tables)):
        own = np.flatnonzero(tables == number)
        own = own[np.argsort(keys[own], kind="stable")]  # which takes little for rows in the order of keys
        changes.append(TableChanges(keys[own], deleted[own], rows[row_of[own[~deleted[own]]]]))
    return changes


def keys_of_table(words: NDArray[np.uint64], table: FrozenTable) -> NDArray[np.uint64]:
    """Return the keys of a table, ascending; `words` [buckets, WORDS] are the index of its group."""
    own = words[table.first_bucket : table.first_bucket + table.buckets]
    keys: NDArray[np.uint64] = own[:, 1:][np.arange(KEYS) < (own[:, :1] & np.uint64(KEYS))]
    return keys


class GroupOverlay:
    """The changed rows of a group as of one version."""

    def __init__(self, group: FrozenGroup, folder: Path) -> None:
        """Begin without rows; `folder` is for the file of values. Raises OSError."""
        self._group, self._folder = group, folder
        self._keys = [np.empty(0, np.uint64) for _ in group.tables]
        self._places = [np.empty(0, np.int64) for _ in group.tables]
        self._used, self._capacity = 0, 0
        self._values: Path | None = None
        self._reserve(0)

    def apply(self, changes: list[TableChanges]) -> None:
        """Merge the rows of a delta; raises OSError, and UserError for rows that the base's dtype cannot represent.

        After an error the overlay is of no version.
        """
        self._reserve(sum(len(change.rows) for change in changes))
        assert self._values is not None
        with self._values.open("r+b") as file:
            file.seek(self._used * self._group.stride)
            for number, change in enumerate(changes):
                file.write(encoded(change.rows, self._group.form, self._group.tables[number].name).data)
                places = np.full(change.keys.size, DELETED, np.int64)
                places[~change.deleted] = self._used + np.arange(len(change.rows))
                self._used += len(change.rows)
                self._merge(number, change.keys, places)

    def _merge(self, number: int, keys: NDArray[np.uint64], places: NDArray[np.int64]) -> None:
        """Add keys, or replace their places."""
        before = self._keys[number]
        at = np.searchsorted(before, keys)
        is_known = np.zeros(keys.size, np.bool_)
        inside = at < before.size
        is_known[inside] = before[at[inside]] == keys[inside]
        self._places[number][at[is_known]] = places[is_known]
        self._keys[number] = np.insert(before, at[~is_known], keys[~is_known])
        self._places[number] = np.insert(self._places[number], at[~is_known], places[~is_known])

    def _reserve(self, rows: int) -> None:
        """Ensure space for more rows, by a new file with those that are still used."""
        if self._values is not None and self._used + rows <= self._capacity:
            return
        before, self._values = self._values, self._folder / secrets.token_hex(8)
        stride, self._used = self._group.stride, 0
        live = sum(int((places != DELETED).sum()) for places in self._places)
        self._capacity = max(MIN_ROWS, 2 * (live + rows))
        with self._values.open("xb") as file:
            # Space that is not written takes none on the disk.
            file.truncate(self._capacity * stride)
            if before is not None:
                values = np.memmap(before, np.uint8, "r").reshape(-1, stride)
                for places in self._places:
                    there = np.flatnonzero(places != DELETED)
                    for chunk in np.array_split(there, len(there) // CHUNK + 1):
                        file.write(values[places[chunk]].data)
                        places[chunk] = self._used + np.arange(chunk.size)
                        self._used += chunk.size
                before.unlink()

    def write(self, folder: Path) -> FrozenGroup:
        """Write index and places into a folder, and link the file of values there; raises OSError, CheckpointError."""
        group = self._group
        rules = [
            TableRules(
                *(table.name, keys.size, table.salt, table.init_bound, table.admission, table.min_count, table.rounds),
                table.size,
            )
            for table, keys in zip(group.tables, self._keys, strict=True)
        ]
        planned = planned_group(group.number, group.dim, group.form, group.trained, rules)
        words = np.zeros(planned.buckets * WORDS, np.uint64)
        for table, keys in zip(planned.tables, self._keys, strict=True):
            part = words[table.first_bucket * WORDS : (table.first_bucket + table.buckets) * WORDS]
            last = -1
            for portion, first in ((keys, table.first_row), (keys[:0], table.first_row + table.rows)):
                last = fill_buckets(portion, table.homes, table.buckets, first, last, part)
                if last < 0:
                    raise CheckpointError(f"too many changed ids of table {table.name} share a place in its index")
        index, places, values = (folder / path for path in overlay_files(planned))
        words.tofile(index)
        np.concatenate(self._places).tofile(places)
        assert self._values is not None
        link_briefly(self._values, values)
        return planned
