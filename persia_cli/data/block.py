"""A block of row groups, decoded, shuffled and ready to be cut into batches."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import ColumnSplit, ParquetDataset
from persia_cli.data.batch import Batch, assemble
from persia_cli.data.columns import uses
from persia_cli.data.decode import Ids, decode_dense, decode_ids, decode_labels, decode_weights, join_ids, take_ids
from persia_cli.data.rowgroup import RowGroup, RowGroupReader, SplitName
from persia_cli.data.splits import selected_rows


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """Samples [rows] of a block in the epoch's order; counts are what decoding it filled or cut."""

    dense: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None
    ids: tuple[Ids, ...]
    counts: Counter[str]

    def batch(self, start: int, stop: int) -> Batch:
        """Return samples [start, stop) of the block as copies, so that they do not keep the block alive."""
        ids: list[NDArray[np.uint64]] = []
        offsets: list[NDArray[np.int64] | None] = []
        for values, own in self.ids:
            if own is None:
                ids.append(values[start:stop])
                offsets.append(None)
            else:
                ids.append(values[own[start] : own[stop]])
                offsets.append(own[start : stop + 1] - own[start])
        weights = None if self.weights is None else self.weights[start:stop].copy()
        return assemble(self.dense[start:stop].copy(), self.labels[start:stop].copy(), weights, ids, offsets)


def decode_block(
    dataset: ParquetDataset,
    split: SplitName,
    reader: RowGroupReader,
    groups: Sequence[RowGroup],
    places: NDArray[np.int64],
    check_stop: Callable[[], None],
) -> DecodedBlock:
    """Read a split's rows of some row groups; `places[i]` is where the i-th of them, in file order, comes to lie.

    Calls `check_stop` before each row group, which may raise to give up. Raises DataError.
    """
    columns = list(dict.fromkeys(use.column for use in uses(dataset)))
    size = places.size
    counts: Counter[str] = Counter()
    dense = np.empty((size, len(dataset.dense)), np.float32)
    labels = np.empty((size, len(dataset.labels)), np.float32)
    weights = None if dataset.weight is None else np.empty(size, np.float32)
    ids: list[list[Ids]] = [[] for _ in dataset.sparse]
    done = 0
    for group in groups:
        check_stop()
        table = reader.read(group, columns)
        column = table.column(dataset.split.column) if isinstance(dataset.split, ColumnSplit) else None
        rows = selected_rows(dataset.split, split, group, column)
        target = places[done : done + (group.rows if rows is None else rows.size)]
        done += target.size
        for number, name in enumerate(dataset.dense):
            dense[target, number] = decode_dense(table.column(name), name, group, rows, dataset.fill, counts)
        for number, name in enumerate(dataset.labels):
            labels[target, number] = decode_labels(table.column(name), name, group, rows)
        if weights is not None and dataset.weight is not None:
            weights[target] = decode_weights(table.column(dataset.weight), dataset.weight, group, rows)
        for parts, feature in zip(ids, dataset.sparse, strict=True):
            parts.append(decode_ids(table.column(feature.column or feature.name), feature, rows, counts))
    order = np.empty_like(places)
    order[places] = np.arange(size)
    shuffled = []
    for parts in ids:
        shuffled.append(take_ids(join_ids(parts), order))
        parts.clear()
    return DecodedBlock(dense, labels, weights, tuple(shuffled), counts)
