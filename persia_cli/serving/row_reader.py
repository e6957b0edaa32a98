"""The rows of a group in its mapped files: the ids of a batch become the network's inputs."""

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from persia_cli.data.read.ids import RARE_ID
from persia_cli.errors import CheckpointError
from persia_cli.kernels.batch.pool import MODES, pool_forward, sequence_forward
from persia_cli.kernels.rows import hashing
from persia_cli.kernels.serving.frozen_index import ABSENT, WORDS
from persia_cli.kernels.serving.frozen_rows import (
    BEYOND,
    CHUNK,
    FORMS,
    Frozen,
    FrozenFeatures,
    Overlay,
    find_row,
    new_row,
    read_frozen,
)
from persia_cli.serving.description import FrozenFeature, FrozenGroup, Missing, ModelDescription, overlay_files

Inputs = dict[str, NDArray[Any]]


def pooled_name(group: int) -> str:
    """Return the name of the network's input of a group's pooled vectors, float32 [n, features, dim]."""
    return f"pooled_{group}"


def sequence_names(feature: int) -> tuple[str, str]:
    """Return the names of a sequence's inputs: vectors float32 [n, length, dim] and mask bool [n, length]."""
    return f"sequence_{feature}", f"mask_{feature}"


class GroupReader:
    """The rows of one group, and the features that read them; used by one thread."""

    def __init__(
        self, folder: Path, group: FrozenGroup, features: Sequence[FrozenFeature], seed: int, missing: Missing,
        overlay: FrozenGroup | None = None,
    ) -> None:  # fmt: skip
        """Map the group's files; `features` are those of the model. Raises CheckpointError for one of another size.

        `overlay` has the changed rows of the group, if there are any.
        """
        self._group, self._name = group, pooled_name(group.number)
        self._words = _mapped(folder / group.index, np.uint64, group.buckets * WORDS)
        self._index_path = folder / group.index
        self._values = _mapped(folder / group.values, np.uint8, group.rows * group.stride)
        numbers = [number for number, feature in enumerate(features) if feature.group == group.number]
        tables = {table.name: table for table in group.tables}
        read = [tables[features[number].table] for number in numbers]
        bounds = [table.init_bound if table.min_count == 1 else -1.0 for table in read]
        self._bounds = np.array(bounds, np.float32)
        self.features = np.array(numbers, np.int64)
        self._known = FrozenFeatures(
            feature=self.features,
            salt=np.array([table.salt for table in read], np.uint64),
            rounds=np.array([table.rounds for table in read], np.int64),
            size=np.array([table.size for table in read], np.uint64),
            first_bucket=np.array([table.first_bucket for table in read], np.uint64),
            homes=np.array([table.homes for table in read], np.uint64),
            buckets=np.array([table.buckets for table in read], np.uint64),
            bound=np.empty(len(read), np.float32),
            admission=np.array([table.admission for table in read], np.uint64),
            substitute=np.empty(len(read), np.int64),
        )
        self._overlay = _overlay_of(folder, overlay, [table.name for table in read])
        entries = max(CHUNK, *self._known.rounds, 1)
        self._frozen = Frozen(
            dim=np.uint64(group.dim),
            stride=np.uint64(group.stride),
            total=np.uint64(group.rows),
            form=FORMS[group.form],
            seed=np.uint64(seed % 2**64),
            new=new_row(group.dim, group.trained),
            keys=np.empty(entries, np.uint64),
            rows=np.empty(entries, np.int64),
            pair=np.empty(2, np.float32),
        )
        self._rare = np.empty(len(read), np.int64)
        find_row(self._frozen, self._known, self._overlay, self._words, np.uint64(RARE_ID), self._rare)
        if (self._rare == BEYOND).any():
            raise self._damaged()
        self._rounds = np.maximum(self._known.rounds, 1)
        self._has_single_rows = bool((self._rounds == 1).all())
        self._modes = np.array([MODES[features[number].pooling] for number in numbers], np.uint8)
        self._pooled = sum(features[number].pooling != "none" for number in numbers)
        self._sequences = [
            (position, number, features[number].max_length or 0)
            for position, number in enumerate(numbers)
            if features[number].pooling == "none"
        ]
        self._inverse = np.empty(0, np.int32)
        self.let_missing_be(missing)

    def let_missing_be(self, missing: Missing) -> None:
        """Select the vector of ids without a row from now on."""
        self._known.bound[:] = self._bounds if missing == "init" else -1.0
        self._known.substitute[:] = self._rare if missing == "rare" else ABSENT

    @property
    def has_rare_ids(self) -> bool:
        """True if some table has a row for rare ids."""
        return bool((self._rare != ABSENT).any())

    def read(
        self,
        ids: NDArray[np.uint64],
        offsets: NDArray[np.uint32],
        size: int,
        single: NDArray[np.bool_],
        missing: NDArray[np.int64],
    ) -> Inputs:
        """Return the network's inputs that come from this group, for a batch whose ids and offsets were checked.

        `single` marks features with one id in every sample. Adds the number of entries without a row to `missing`
        int64[features of the model]. Raises CheckpointError for an index that names rows beyond the file.
        """
        dim = self._group.dim
        single_rows = self._has_single_rows and bool(single[self.features].all())
        by_sample = single_rows and not self._sequences
        if single_rows:
            entries = self.features.size * size
        else:
            firsts, lasts = offsets[self.features * size], offsets[(self.features + 1) * size]
            entries = int(((lasts - firsts).astype(np.int64) * self._rounds).sum())
        rows, absent = np.empty((entries, dim), np.float32), np.zeros(self.features.size, np.int64)
        files = (self._overlay, self._words, self._values)
        if read_frozen(self._frozen, self._known, *files, ids, offsets, size, by_sample, rows.reshape(-1), absent):
            raise self._damaged()
        if absent.any():
            missing[self.features] += absent
        if by_sample:  # a vector pooled from one row is the row
            return {self._name: rows.reshape(size, self._pooled, dim)}
        inverse, group_offsets = self._numbers(entries), None
        if not single_rows:
            group_offsets = np.empty(self.features.size * size + 1, np.uint32)
            hashing.rebase_offsets(offsets, size, self.features, self._rounds, group_offsets)
        pooled = np.empty((size, self._pooled, dim), np.float32)
        pool_forward(rows, inverse, group_offsets, self._modes, self._rounds, pooled)
        inputs: Inputs = {self._name: pooled}
        for position, number, length in self._sequences:
            values, mask = np.empty((size, length, dim), np.float32), np.empty((size, length), np.bool_)
            part = slice(position * size, (position + 1) * size)
            entries_of = inverse[part] if group_offsets is None else inverse
            bounds = None if group_offsets is None else group_offsets[part.start : part.stop + 1]
            sequence_forward(rows, entries_of, bounds, int(self._rounds[position]), values, mask)
            inputs |= dict(zip(sequence_names(number), (values, mask), strict=True))
        return inputs

    def _damaged(self) -> CheckpointError:
        return CheckpointError(f"{self._index_path} is damaged: it names rows that are not there; export the run again")

    def _numbers(self, entries: int) -> NDArray[np.int32]:
        """Return 0, 1, 2, …: each entry has its own row."""
        if self._inverse.size < entries:
            self._inverse = np.arange(max(entries, 2 * self._inverse.size), dtype=np.int32)
        return self._inverse[:entries]


def has_rare_ids(folder: Path, model: ModelDescription) -> bool:
    """Return True if a table of an exported model has a row for rare ids."""
    return any(
        GroupReader(folder, group, model.features, model.seed, "rare").has_rare_ids for group in model.groups
    )  # fmt: skip


def _overlay_of(folder: Path, overlay: FrozenGroup | None, read: Sequence[str]) -> Overlay:
    """Return the changed rows of the tables that features read, by their names."""
    if overlay is None:
        words, places, values = np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.uint8)
        tables = [(0, 0, 0)] * len(read)
    else:
        index_path, places_path, values_path = (folder / path for path in overlay_files(overlay))
        words = _mapped(index_path, np.uint64, overlay.buckets * WORDS)
        places = _mapped(places_path, np.int64, overlay.rows)
        values = _mapped(values_path, np.uint8, None)
        known = {table.name: table for table in overlay.tables}
        tables = [(known[name].first_bucket, known[name].homes, known[name].buckets) for name in read]
    of_features = np.array(tables, np.uint64).reshape(len(read), 3).T.copy()
    for array in (words, places, values, of_features):
        array.flags.writeable = False
    return Overlay(words, places, values, *of_features)


_MAPPED: "WeakValueDictionary[tuple[int, int, int], NDArray[Any]]" = WeakValueDictionary()
"""Mapped files by device, number and size.

Versions of a model that have a file in common read it through the same pages, so a new version needs no new ones.
"""


def _mapped(path: Path, dtype: Any, size: int | None) -> NDArray[Any]:
    """Return a file as read-only memory, which processes share.

    Raises CheckpointError unless it has so many items; None: as many as there are.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            nbytes = found.st_size if size is None else size * np.dtype(dtype).itemsize
            if found.st_size != nbytes:
                raise CheckpointError(
                    f"{path} has {found.st_size:,} bytes, and should have {nbytes:,}; export the run again"
                )
            if not nbytes:
                return np.empty(0, dtype)
            key = (found.st_dev, found.st_ino, nbytes)
            mapped = _MAPPED.get(key)
            if mapped is None:
                mapped = _MAPPED[key] = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)
            return mapped
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}; export the run again") from error
