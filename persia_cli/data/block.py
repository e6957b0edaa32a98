"""A block of row groups, decoded, shuffled and ready to be cut into batches."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.loss import Link
from persia_cli.config.schema.split import ColumnSplit
from persia_cli.control.position import SplitName
from persia_cli.data.batch import Batch, assemble
from persia_cli.data.columns import QUERY, label_columns, uses
from persia_cli.data.decode import (
    Ids,
    decode_dense,
    decode_ids,
    decode_labels,
    decode_query_ids,
    decode_weights,
    join_ids,
    take_ids,
)
from persia_cli.data.row_groups import RowGroup, RowGroupReader
from persia_cli.data.splits import selected_rows


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """Samples of a block in the epoch's order; `counts` holds the numbers of values that decoding filled or cut."""

    dense: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None
    ids: tuple[Ids, ...]
    query_ids: NDArray[np.uint64] | None
    counts: Counter[str]

    def batch(self, start: int, stop: int) -> Batch:
        """Return copies of samples [start, stop) of the block, so that they do not keep the block in memory."""
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
        return assemble(
            self.dense[start:stop].copy(),
            self.labels[start:stop].copy(),
            weights,
            ids,
            offsets,
            None if self.query_ids is None else self.query_ids[start:stop].copy(),
        )


def decode_block(
    dataset: ParquetDataset,
    lists: frozenset[str],
    split: SplitName,
    reader: RowGroupReader,
    groups: Sequence[RowGroup],
    places: NDArray[np.int64],
    check_stop: Callable[[], None],
    links: Mapping[str, Link],
    query_column: str | None,
) -> DecodedBlock:
    """Read a split's rows of some row groups; the i-th of them, in file order, goes to position `places[i]`.

    `lists` names the columns that hold lists. Calls `check_stop`, which may raise to stop the work, before each row
    group. `links` has what predicts each label, a probability where it is not named. `query_column` is that of query
    ids, if they are wanted. Raises DataError.
    """
    columns = list(dict.fromkeys(use.column for use in uses(dataset) if use.role != QUERY or query_column))
    size = places.size
    counts: Counter[str] = Counter()
    dense = np.empty((size, dataset.dense_width), np.float32)
    # Samples that are only to be scored have no labels; zeros take their place and are never read.
    labels = np.zeros((size, len(dataset.labels)), np.float32)
    weights = None if dataset.weight is None else np.empty(size, np.float32)
    query_ids = None if query_column is None else np.empty(size, np.uint64)
    has_lists = [each.column_name in lists or each.makes_lists or each.drops_nulls for each in dataset.sparse]
    ids = _IdsOfBlock(has_lists, places)
    done = 0
    for group in groups:
        check_stop()
        table = reader.read(group, columns)
        split_column = table.column(dataset.split.column) if isinstance(dataset.split, ColumnSplit) else None
        rows = selected_rows(dataset.split, split, group, split_column)
        stop = done + (group.rows if rows is None else rows.size)
        target = places[done:stop]
        first = 0
        for feature in dataset.dense_features:
            values = decode_dense(table.column(feature.name), feature, group, rows, dataset.fill, counts)
            dense[target, first : first + feature.inputs] = values
            first += feature.inputs
        for number, (name, label) in enumerate(zip(label_columns(dataset), dataset.labels, strict=False)):
            link = links.get(name, "logistic")
            labels[target, number] = decode_labels(
                table.column(name), label, group, rows, link, dataset.has_optional_labels
            )
        if weights is not None and dataset.weight is not None:
            weights[target] = decode_weights(table.column(dataset.weight), dataset.weight, group, rows)
        if query_ids is not None and query_column is not None:
            query_ids[target] = decode_query_ids(table.column(query_column), query_column, rows)
        for number, sparse in enumerate(dataset.sparse):
            column = table.column(sparse.column_name)
            as_lists = sparse.column_name in lists or sparse.makes_lists
            ids.add(number, target, decode_ids(column, sparse, as_lists, group, rows, counts))
        done = stop
    return DecodedBlock(dense, labels, weights, ids.in_order(), query_ids, counts)


class _IdsOfBlock:
    """Ids of a block while it is read: single ids are stored at their place at once, lists are joined at the end."""

    def __init__(self, is_list: Sequence[bool], places: NDArray[np.int64]) -> None:
        self._places = places
        self._slots = np.cumsum([not each for each in is_list]) - 1
        self._single = np.empty((len(is_list) - sum(is_list), places.size), np.uint64)
        self._lists: list[list[Ids] | None] = [[] if each else None for each in is_list]

    def add(self, feature: int, target: NDArray[np.int64], ids: Ids) -> None:
        parts = self._lists[feature]
        if parts is None:
            self._single[self._slots[feature], target] = ids.values
        else:
            parts.append(ids)

    def in_order(self) -> tuple[Ids, ...]:
        order = np.empty_like(self._places)
        order[self._places] = np.arange(order.size)
        done: list[Ids] = []
        for slot, parts in zip(self._slots, self._lists, strict=True):
            if parts is None:
                done.append(Ids(self._single[slot], None))
            else:
                done.append(take_ids(join_ids(parts), order))
                parts.clear()
        return tuple(done)
