"""A block of rows, decoded, shuffled and ready to be cut into batches."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.data.read.bad_rows import bad_rows_allowed, leaving_out
from persia_cli.data.read.batch import Batch, Ids, assemble, join_ids, offsets_of, take_ids
from persia_cli.data.read.columns import QUERY, label_columns, uses
from persia_cli.data.read.decode import (
    decode_dense,
    decode_ids,
    decode_labels,
    decode_query_ids,
    decode_weights,
)
from persia_cli.data.read.gaps import ListTimes, checked_gaps, decode_moments, elements_in, gaps
from persia_cli.data.read.histories import Histories
from persia_cli.data.read.slices import RowPiece
from persia_cli.metric import Link

NOT_BAD = -1
_ROWS_AT_ONCE, _TAKEN_AT_ONCE = 4096, 512
"""Rows whose ids are moved together: they fit into a processor's cache."""
_SPARE = 8
"""Blocks differ a little in size, so their memory is for one in so many rows more; what is not used takes none."""


class Earlier(NamedTuple):
    """The ids of a feature of a history: those of the last `length` events of each sample's span."""

    values: NDArray[np.uint64]
    """The ids of all events, in the order of their store."""
    spans: NDArray[np.int64]
    """[rows, 2], the spans [first, last) of each sample's earlier events; features of a history share them."""
    length: int

    def take(self, rows: NDArray[np.int64]) -> Ids:
        """Return the ids of some samples, in the order given."""
        # Most data has no histories, and numba takes half a second to import.
        from persia_cli.kernels.batch.spans import copy_spans

        first, last = self.spans.take(rows, axis=0).T.copy()
        np.maximum(first, last - self.length, out=first)
        offsets = offsets_of(last - first)
        ids = np.empty(offsets[-1], np.uint64)
        copy_spans(self.values, first, last, ids)
        return Ids(ids, offsets)


class EarlierTimes(NamedTuple):
    """A dense feature that is the times of a history."""

    feature: DenseFeature
    first: int
    """Number of its first input."""
    events: Earlier
    """The times of all events, as the bits of int64."""
    asked: NDArray[np.int64]
    """[rows], the time of each sample."""

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the inputs of some samples, in the order given."""
        return gaps(ListTimes(self.events.take(rows), self.asked.take(rows).view(np.uint64)), self.feature)


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """Decoded samples of a block; the k-th in the epoch's order is row order[k].

    The values of a sample lie next to each other, so that a sample is read from few places in memory.
    """

    order: NDArray[np.int64]
    dense: NDArray[np.float32]
    """[rows, inputs], without those of `times`"""
    times: tuple[EarlierTimes, ...]
    """In the order of their inputs."""
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None
    single: NDArray[np.uint64]
    """[rows, features that have one id per sample]"""
    lists: tuple[Ids | Earlier | None, ...]
    """The ids of each feature, None for those in `single`."""
    query_ids: NDArray[np.uint64] | None
    counts: Counter[str]
    """Numbers of values that decoding filled or cut."""
    bad: NDArray[np.int64]
    """[rows], the numbers over all files of rows with values that cannot be used, `NOT_BAD` for all others"""
    why: str
    """A sentence on the first of them."""

    def batch(self, start: int, stop: int) -> Batch:
        """Return copies of samples [start, stop) of the epoch's order."""
        rows = self.order[start:stop]
        columns = np.empty((self.single.shape[1], rows.size), np.uint64)
        for first in range(0, rows.size, _TAKEN_AT_ONCE):
            portion = slice(first, first + _TAKEN_AT_ONCE)
            columns[:, portion] = self.single.take(rows[portion], axis=0).T
        single = iter(columns)
        taken = [
            Ids(next(single), None) if ids is None
            else take_ids(ids, rows) if isinstance(ids, Ids)
            else ids.take(rows)
            for ids in self.lists
        ]  # fmt: skip
        dense = self.dense.take(rows, axis=0)
        for times in self.times:
            dense = np.concatenate([dense[:, : times.first], times.take(rows), dense[:, times.first :]], axis=1)
        batch = assemble(
            dense,
            self.labels.take(rows, axis=0),
            None if self.weights is None else self.weights[rows],
            [ids.values for ids in taken] if any(ids is not None for ids in self.lists) else columns,
            [ids.offsets for ids in taken],
            None if self.query_ids is None else self.query_ids[rows],
        )
        bad = self.bad[rows][self.bad[rows] != NOT_BAD]
        return replace(batch, bad=tuple(bad.tolist()), why=self.why) if bad.size else batch


class Room:
    """The memory of a block, for one after the other: a system takes long to give so much anew."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def array(self, name: str, shape: tuple[int, int], dtype: type) -> NDArray[Any]:
        """Return an array of any content, which a block that was decoded before has no more."""
        array = self._arrays.get(name)
        if array is None or len(array) < shape[0]:
            self._arrays.pop(name, None)  # before there is another one
            array = self._arrays[name] = np.empty((shape[0] + shape[0] // _SPARE, *shape[1:]), dtype)
        return array[: shape[0]]


def block_columns(dataset: ParquetDataset, query_column: str | None) -> list[str]:
    """Return the columns that samples are made of, and those that make the split."""
    return list(dict.fromkeys(use.column for use in uses(dataset) if use.role != QUERY or query_column))


def decode_block(
    dataset: ParquetDataset,
    lists: frozenset[str],
    histories: Histories,
    pieces: Iterable[RowPiece],
    places: NDArray[np.int64],
    room: Room,
    links: Mapping[str, Link],
    query_column: str | None,
) -> DecodedBlock:
    """Decode the pieces of a block; the i-th of their rows has position `places[i]` in the epoch's order.

    The block is valid until `room` is used again.
    `lists` names the columns that hold lists. `links` has what predicts each label, a probability where it is not
    named. `query_column` is that of query ids, if they are wanted. Raises DataError.
    """
    size = places.size
    counts: Counter[str] = Counter()
    spans = {name: room.array(f"history {name}", (size, 2), np.int64) for name in histories.stores}
    times = tuple(_times(dataset, histories, spans, room))
    width = dataset.dense_width - sum(each.feature.inputs for each in times)
    dense = room.array("dense", (size, width), np.float32)
    # Samples that are only to be scored have no labels; zeros take their place and are never read.
    labels = np.zeros((size, len(dataset.labels)), np.float32)
    allowed = bad_rows_allowed(dataset)
    weights = np.ones(size, np.float32) if allowed or dataset.weight is not None else None
    query_ids = None if query_column is None else np.empty(size, np.uint64)
    earlier = [_earlier(histories, feature, spans) for feature in dataset.sparse]
    of_samples = tuple(feature for feature, ids in zip(dataset.sparse, earlier, strict=True) if ids is None)
    is_list = [feature.column_name in lists or feature.makes_lists or feature.drops_nulls for feature in of_samples]
    ids = _IdsOfBlock(is_list, room.array("single", (size, len(is_list) - sum(is_list)), np.uint64))
    bad, why = np.full(size, NOT_BAD), ""
    done = 0
    for piece in pieces:
        target = slice(done, done + piece.size)
        into = _Places(
            dense[target],
            labels[target],
            None if weights is None else weights[target],
            None if query_ids is None else query_ids[target],
        )
        decode = partial(_decode_piece, dataset, of_samples, lists, links, query_column, into)
        (feature_ids, counted), left_out, text = leaving_out(piece, allowed, decode)
        ids.add(done, feature_ids)
        for name, store in histories.stores.items():
            history = dataset.histories[name]
            found = store.spans(history, piece.group, piece.start, piece.table, piece.rows)
            spans[name][target] = found[0]
            for each in times:
                if dataset.history_of_times(each.feature) == name:
                    each.asked[target] = found[1]
        counts += counted
        if weights is not None and left_out.size:
            weights[done + left_out] = 0.0
            table_rows = left_out if piece.rows is None else piece.rows[left_out]
            bad[done + left_out], why = piece.group.first_row + piece.start + table_rows, why or text
        done += piece.size
    order = np.empty_like(places)
    order[places] = np.arange(size)
    read = iter(ids.lists())
    feature_lists = tuple(next(read) if of_history is None else of_history for of_history in earlier)
    return DecodedBlock(order, dense, times, labels, weights, ids.single, feature_lists, query_ids, counts, bad, why)


def _earlier(histories: Histories, feature: SparseFeature, spans: Mapping[str, NDArray[np.int64]]) -> Earlier | None:
    """Return the ids of a feature of a history, whose samples' spans come later; None for a column of samples."""
    if (found := histories.ids_of(feature)) is None:
        return None
    name, values = found
    assert feature.max_length is not None
    return Earlier(values, spans[name], feature.max_length)


def _times(
    dataset: ParquetDataset, histories: Histories, spans: Mapping[str, NDArray[np.int64]], room: Room
) -> Iterator[EarlierTimes]:
    """Yield the dense features that are times of histories, whose samples' spans and times come later."""
    first = 0
    for feature in dataset.dense_features:
        if (name := dataset.history_of_times(feature)) is not None:
            assert feature.width is not None
            asked = room.array(f"asked {name}", (len(spans[name]), 1), np.int64).reshape(-1)
            events = Earlier(histories.stores[name].times.view(np.uint64), spans[name], feature.width)
            yield EarlierTimes(feature, first, events, asked)
        first += feature.inputs


class _Places(NamedTuple):
    """The places in a block of the samples of a piece."""

    dense: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None
    query_ids: NDArray[np.uint64] | None


def _decode_piece(
    dataset: ParquetDataset,
    sparse: Sequence[SparseFeature],
    lists: frozenset[str],
    links: Mapping[str, Link],
    query_column: str | None,
    into: _Places,
    piece: RowPiece,
) -> tuple[list[Ids], Counter[str]]:
    """Decode a piece; return the ids of each feature of `sparse`, and the numbers of values that were filled or cut.

    Raises BadValueError for a value that cannot be used.
    """
    table, rows, counts = piece.table, piece.rows, Counter[str]()
    first = 0
    for feature in dataset.dense_features:
        if dataset.history_of_times(feature) is not None:
            continue
        column = table.column(feature.name)
        if feature.times_of is None:
            values = decode_dense(column, feature, piece, rows, dataset.fill, counts)
        else:
            moments = decode_moments(column, table.column(feature.until), feature, piece, rows)
            [of] = [each for each in sparse if each.name == feature.times_of]
            elements = elements_in(table.column(of.column_name))
            values = checked_gaps(moments, feature, elements if rows is None else elements[rows], piece, rows)
        into.dense[:, first : first + feature.inputs] = values
        first += feature.inputs
    for number, label in enumerate(dataset.label_rules if label_columns(dataset) else ()):
        link = links.get(label.name, "logistic")
        column = table.column(label.name)
        into.labels[:, number] = decode_labels(column, label, piece, rows, link, dataset.has_optional_labels)
    if into.weights is not None and dataset.weight is not None:
        into.weights[:] = decode_weights(table.column(dataset.weight), dataset.weight, piece, rows)
    if into.query_ids is not None and query_column is not None:
        into.query_ids[:] = decode_query_ids(table.column(query_column), query_column, piece, rows)
    ids = [
        decode_ids(table.column(use.column_name), use, use.column_name in lists or use.makes_lists, piece, rows, counts)
        for use in sparse
    ]
    return ids, counts


class _IdsOfBlock:
    """Ids of a block while it is read."""

    def __init__(self, is_list: Sequence[bool], single: NDArray[np.uint64]) -> None:
        self._parts: list[list[Ids] | None] = [[] if has_lists else None for has_lists in is_list]
        self.single = single

    def add(self, done: int, ids: list[Ids]) -> None:
        """Add the ids of each feature, for the rows from `done` on."""
        single = [feature_ids.values for feature_ids, parts in zip(ids, self._parts, strict=True) if parts is None]
        for feature_ids, parts in zip(ids, self._parts, strict=True):
            if parts is not None:
                parts.append(feature_ids)
        for first in range(0, single[0].size if single else 0, _ROWS_AT_ONCE):
            for slot, values in enumerate(single):
                portion = values[first : first + _ROWS_AT_ONCE]
                self.single[done + first : done + first + portion.size, slot] = portion

    def lists(self) -> tuple[Ids | None, ...]:
        """Return the joined ids of features that have lists."""
        return tuple(None if parts is None else join_ids(parts) for parts in self._parts)
