"""A first pass over all rows, before any is written: it finds the rare ids, and the time where a split lies."""

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import sha256
from itertools import takewhile
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.config.schema.features import SparseFeature
from persia_cli.data.prepare.options import PrepareOptions
from persia_cli.data.read.arrow_types import is_list
from persia_cli.data.read.ids import RARE_ID, seed_of
from persia_cli.data.read.random_bits import salt, stream, uniform
from persia_cli.errors import DataError
from persia_cli.kernels.table.sketch import count_ids, replace_rare_ids

SPLIT = "split"
"""The column of a split that the user asked for; its values are `train` and `eval`."""

_MOST_COUNT = 255
_LEAST_BYTES, _MOST_BYTES = 1 << 16, 1 << 28
_SAMPLES = 256
"""Values of the time column that are sampled from one table."""


class Prescan:
    """Reads every row once, in any order, and then changes rows by its findings; threads share it."""

    def __init__(
        self,
        parts: Sequence[str],
        sparse: Sequence[SparseFeature],
        options: PrepareOptions,
        time: str | None,
        source_bytes: int,
    ) -> None:
        """Take the parts, in order; `source_bytes` bounds the number of ids, since each takes some bytes of text.

        Raises DataError for options that are out of range.
        """
        if not 1 <= options.min_count <= _MOST_COUNT:
            raise DataError(f"--min-count {options.min_count}: expected 1 to {_MOST_COUNT}")
        self._sparse = {feature.column or feature.name: feature.table or feature.name for feature in sparse}
        self._options = options
        self._time = time
        self._rows = dict.fromkeys(parts, 0)
        self._times: list[tuple[NDArray[np.int64], float]] = []
        nbytes = min(max(source_bytes, _LEAST_BYTES), _MOST_BYTES) // 64 * 64
        self._sketch = np.zeros(nbytes if options.min_count > 1 else 0, np.uint8)
        self._cut: float | None = None
        self._lock = Lock()

    @property
    def is_needed(self) -> bool:
        """True if rows depend on other rows, so that all must be read before the first is written."""
        chronological = self._options.split is not None and self._options.split.order == "chronological"
        return self._options.min_count > 1 or chronological

    def see(self, part: str, table: Any) -> None:
        """Read rows of a part."""
        with self._lock:
            self._rows[part] += table.num_rows
            if self._options.min_count > 1:
                for column, name in self._sparse.items():
                    for ids, present in _ids_of(table.column(column)):
                        count_ids(ids, present, seed_of(name), self._sketch)
            if self._time is not None and table.num_rows:
                times = np.sort(self._times_of(table))
                places = np.linspace(0, len(times) - 1, min(_SAMPLES, len(times))).astype(np.int64)
                self._times.append((times[places], len(times) / len(places)))

    def change(self, part: str, table: Any, first_row: int) -> Any:
        """Return a part's rows for writing; `first_row` is the number of the first one within the part."""
        if self._options.min_count > 1:
            for column, name in self._sparse.items():
                changed = _without_rare(table.column(column), seed_of(name), self._sketch, self._options.min_count)
                table = table.set_column(table.schema.get_field_index(column), column, changed)
        if self._options.split is not None:
            names = pa.DictionaryArray.from_arrays(
                pa.array(self._evaluates(part, table, first_row).astype(np.int8)), pa.array(["train", "eval"])
            )
            if SPLIT in table.column_names:
                table = table.drop_columns([SPLIT])
            table = table.append_column(SPLIT, names)
        return table

    def _evaluates(self, part: str, table: Any, first_row: int) -> NDArray[np.bool_]:
        """Return True for each row that evaluates."""
        assert self._options.split is not None
        rows = np.arange(first_row, first_row + table.num_rows, dtype=np.uint64)
        if self._options.split.order == "random":
            key = salt(int.from_bytes(sha256(part.encode()).digest()[:8], "little"))
            return uniform(stream(key, rows)) < self._options.split.fraction
        with self._lock:
            if self._cut is None:
                self._cut = self._find_cut(1.0 - self._options.split.fraction)
        if self._time is not None:
            return np.asarray(self._times_of(table) >= self._cut)
        before = sum(
            count for _, count in takewhile(lambda part_and_rows: part_and_rows[0] != part, self._rows.items())
        )
        return np.asarray(rows + np.uint64(before) >= self._cut)

    def _find_cut(self, fraction: float) -> float:
        """Return the time, or the row number, from which on rows evaluate."""
        if self._time is None:
            return round(fraction * sum(self._rows.values()))
        times = np.concatenate([times for times, _ in self._times])
        weights = np.concatenate([np.full(len(times), weight) for times, weight in self._times])
        order = np.argsort(times, kind="stable")
        reached = np.cumsum(weights[order])
        times = times[order]
        at = min(bisect_right(reached, fraction * reached[-1]), len(times) - 1)
        if times[at] == times[0]:  # otherwise no row would train
            at = bisect_right(times, times[0])
        if at == len(times):
            raise DataError(f"column {self._time} has only one value, which cannot split the rows in time")
        return float(times[at])

    def _times_of(self, table: Any) -> NDArray[np.int64]:
        """Return the times of all rows; raises DataError if one is null."""
        column = table.column(self._time)
        if column.null_count:
            raise DataError(f"column {self._time} is null in some rows, so their place in time is unknown")
        times: NDArray[np.int64] = column.to_numpy().astype(np.int64)
        return times


def _ids_of(column: Any) -> list[tuple[NDArray[np.uint64], NDArray[np.bool_]]]:
    """Return the ids of each chunk of a column, and a mask of those that are not null."""
    chunks = []
    for chunk in column.chunks:
        values = chunk.flatten() if is_list(chunk.type) else chunk
        ids = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
        chunks.append((ids, values.is_valid().to_numpy(zero_copy_only=False)))
    return chunks


def _without_rare(column: Any, seed: int, sketch: NDArray[np.uint8], least: int) -> Any:
    """Return a column of ids, or of lists of them, as uint64 with `RARE_ID` in place of rare ones."""
    changed = []
    for chunk, (ids, present) in zip(column.chunks, _ids_of(column), strict=True):
        replace_rare_ids(ids, present, seed, sketch, least, RARE_ID)
        values = pa.array(ids, mask=~present)
        if is_list(chunk.type):
            lengths = chunk.value_lengths().fill_null(0).to_numpy()
            bounds = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
            values = pa.ListArray.from_arrays(bounds, values, mask=chunk.is_null())
        changed.append(values)
    return pa.chunked_array(changed)
