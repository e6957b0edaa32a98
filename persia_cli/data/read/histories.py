"""Histories of a data set: the stores of their events, and the windows that training samples may be made of."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.base import MOST
from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import SparseFeature
from persia_cli.config.schema.histories import History
from persia_cli.config.schema.split import EverySplit
from persia_cli.data.read.arrow_types import NUMBERS, class_of, plain_type
from persia_cli.data.read.events import EventStore, event_store
from persia_cli.data.read.row_groups import GroupedRows, RowGroup
from persia_cli.data.read.splits import IN_WINDOW, PARTS, UNUSED, Parts
from persia_cli.data.read.times import TIMES
from persia_cli.errors import DataError, count

_EVERY_ROW = EverySplit(kind="every", n=MOST, offset=MOST - 1)
"""A split in which all rows of any files train."""


class Events(NamedTuple):
    """The contents of the files of a history's events, as a scan finds them."""

    settled: ParquetDataset
    schemas: tuple[Any, ...]
    lists: frozenset[str]
    rows: GroupedRows


Scan = Callable[[ParquetDataset], Events]


class Histories(NamedTuple):
    """A data set whose histories have their paths, and whose features of histories know the source of their ids."""

    dataset: ParquetDataset
    stores: Mapping[str, EventStore]

    def ids_of(self, feature: SparseFeature) -> tuple[str, NDArray[np.uint64]] | None:
        """Return the history of a feature and its ids of all events; None for a column of samples."""
        found = self.dataset.history_of(feature)
        if found is None:
            return None
        columns = _stored(self.dataset, found[0])
        return found[0], self.stores[found[0]].ids[columns.index(_of_events(feature, found[1]))]

    @property
    def columns(self) -> frozenset[str]:
        """The columns of histories that features read, as features name them."""
        return frozenset(column for name in self.stores for column in _columns(self.dataset, name))


def without_ready(dataset: ParquetDataset, schemas: Sequence[Any]) -> ParquetDataset:
    """Return the data set without the histories whose lists its files hold, as a log of served requests does.

    Raises DataError if not all files hold all columns of these lists.
    """
    names = [frozenset(schema.names) for schema in schemas]
    left = {}
    for name, history in dataset.histories.items():
        columns = _columns(dataset, name)
        held = sorted(columns.intersection(*names) if names else ())
        some = sorted(columns.intersection(frozenset().union(*names)))
        if some and len(held) < len(columns):
            lacking = min(columns.difference(held))
            raise DataError(
                f"dataset.histories.{name}: the files of dataset.path have lists in {some[0]}, and some files or all "
                f"have no {lacking}; add this column, or take {some[0]} out to read the lists from events"
            )
        if not columns or not held:
            left[name] = history
    samples = dataset.samples if dataset.samples and dataset.samples.of in left else None
    return dataset.model_copy(update={"histories": left, "samples": samples})


def _columns(dataset: ParquetDataset, name: str) -> set[str]:
    """Return the columns of a history that features read."""
    times = {feature.name for feature in dataset.times if dataset.history_of_times(feature) == name}
    return {feature.column_name for feature, _ in dataset.features_of(name)} | times


def open_histories(dataset: ParquetDataset, schemas: tuple[Any, ...], scan: Scan) -> Histories:
    """Open the stores of events of a data set, whose own files have these schemas; those not in the cache are made.

    Raises DataError for files without events, for columns that are missing or cannot be ids, users or times, and for
    users or times of another kind than those of the samples.
    """
    stores = {}
    for name in (name for name in dataset.histories if dataset.features_of(name)):
        history = _complete(dataset, name)
        dataset = dataset.model_copy(update={"histories": {**dataset.histories, name: history}})
        try:
            events = scan(_event_files(dataset, name))
        except DataError as error:
            # The events are a separate data set, some of whose keys have other names.
            key = f"dataset.histories.{name}"
            text = str(error).replace("dataset.path", f"{key}.path").replace("dataset.sparse", f"{key}.columns")
            raise DataError(text.replace("correct dataset.labels", f"correct {key}.path")) from error
        _require_equal_kinds(name, history, events.schemas, schemas)
        if lists := sorted(events.lists):
            raise DataError(
                f"dataset.histories.{name}.columns: column {lists[0]} holds lists, and an event has one id; write a "
                "row for each"
            )
        kinds = {feature.column_name: feature.ids for feature in events.settled.sparse}
        settled = {
            feature: feature.model_copy(update={"ids": feature.ids or kinds[column]})
            for feature, column in dataset.features_of(name)
        }
        sparse = tuple(settled.get(feature, feature) for feature in dataset.sparse)
        dataset = dataset.model_copy(update={"sparse": sparse})
        form = dataset.csv.model_dump_json()
        label = dataset.label_rules[0] if _is_of_windows(dataset, name) else None
        stores[name] = event_store(history, _stored(dataset, name), label, events.rows, form)
    return Histories(dataset, stores)


def _complete(dataset: ParquetDataset, name: str) -> History:
    """Return a history with what its defaults stand for."""
    history = dataset.histories[name]
    ties = "file_order" if _is_of_windows(dataset, name) else history.ties or "strict"
    return history.model_copy(update={"path": history.path or dataset.path, "ties": ties})


def _is_of_windows(dataset: ParquetDataset, name: str) -> bool:
    """Return True if the windows of a history are the training samples."""
    return dataset.samples is not None and dataset.samples.of == name


def _event_files(dataset: ParquetDataset, name: str) -> ParquetDataset:
    """Return a data set of a history's events alone."""
    history = dataset.histories[name]
    features = {column: SparseFeature(name=column) for column in history.columns}
    features |= {column: _of_events(feature, column) for feature, column in dataset.features_of(name)}
    changed = {
        "path": history.path,
        "labels": dataset.labels if _is_of_windows(dataset, name) else (),
        "dense": (),
        "sparse": tuple(features.values()),
        "histories": {name: history},
        "split": _EVERY_ROW,
        "shuffle": False,
    }
    return dataset.model_copy(update=changed | dict.fromkeys(("samples", "weight", "group_by", "recipe", "generator")))


def _of_events(feature: SparseFeature, column: str) -> SparseFeature:
    """Return the feature of an event's column that has the ids of a feature of its history."""
    changed = {"name": column, "column": column, "table": feature.table_name, "pooling": "sum", "max_length": None}
    return feature.model_copy(update=changed)


def _stored(dataset: ParquetDataset, name: str) -> list[SparseFeature]:
    """Return the features of events whose ids are in the store of a history."""
    return list(dict.fromkeys(_of_events(feature, column) for feature, column in dataset.features_of(name)))


def _require_equal_kinds(name: str, history: History, events: tuple[Any, ...], samples: tuple[Any, ...]) -> None:
    for key, column in (("user", history.user), ("time", history.time)):
        here, there = _kinds(events, column), _kinds(samples, column)
        if key == "time":
            # Texts, and numbers in a format, are times as dates are.
            here, there = (
                {"times" if history.format or kind != "numbers" else kind for kind in kinds} for kinds in (here, there)
            )
        if here and there and here != there:
            raise DataError(
                f"dataset.histories.{name}.{key}: column {column} holds {' and '.join(sorted(here))} in the events and "
                f"{' and '.join(sorted(there))} in the samples, so no event would be found; make the files agree"
            )


def _kinds(schemas: tuple[Any, ...], column: str) -> set[str]:
    """Return what a column holds over all files, apart from nulls."""
    classes = {class_of(plain_type(schema.field(column).type)) for schema in schemas} - {"null"}
    return {"numbers" if kind in NUMBERS else "times" if kind in TIMES else "strings" for kind in classes}


def windows(parts: Parts, groups: Sequence[RowGroup], histories: Histories, name: str) -> Parts:
    """Return the part of each row of a data set, where of the training rows only the last ones of windows train.

    They are each user's newest training event, and of those before it every `max_length`-th, but no first event: it has
    no history. Other training events are `IN_WINDOW`, and training rows that are no events `UNUSED`. So each training
    event but a first one is in exactly one sample a target. Raises DataError if events of other parts would be targets
    too, if training rows are not in the files of the events, and if none has an earlier event.
    """
    store, length = histories.stores[name], histories.dataset.histories[name].max_length
    spans = [slice(group.first_row, group.first_row + group.rows) for group in groups]
    firsts = [store.first_place(group) for group in groups]
    placed = [(slice(first, first + span.stop - span.start), span)
              for first, span in zip(firsts, spans, strict=True) if first is not None]  # fmt: skip
    elsewhere = [parts[span] for first, span in zip(firsts, spans, strict=True) if first is None]
    if absent := sum(int(np.count_nonzero(some == PARTS["train"])) for some in elsewhere):
        raise DataError(
            f"dataset.samples: {count(absent, 'training row')} are not in the files of history {name}; leave out "
            f"dataset.histories.{name}.path, so that the samples are its events"
        )
    size = max([int(store.places.max()) + 1, *(place.stop for place, _ in placed)])
    of_places = np.full(size, UNUSED, np.int8)
    for place, span in placed:
        of_places[place] = parts[span]
    trains = of_places[store.places] == PARTS["train"]
    after = later(trains, store.starts)
    refuse_late("dataset.samples", int(np.count_nonzero((after > 0) & ~trains)), int(np.count_nonzero(~trains)))
    is_last = trains & (after % length == 0)
    is_last[store.starts[:-1]] = False
    if trains.any() and not is_last.any():
        raise DataError(
            f"dataset.samples: no user has two training events in history {name}, so there is nothing to predict; "
            f"correct dataset.histories.{name}.user"
        )
    of_events = np.full(size, UNUSED, np.int8)
    of_events[store.places] = np.where(is_last, PARTS["train"], IN_WINDOW)
    chosen = parts.copy()
    for place, span in placed:
        chosen[span] = np.where(parts[span] == PARTS["train"], of_events[place], parts[span])
    return chosen


def later(trains: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many training events of its user come after each event, of events in order of user and time.

    Those of a user are starts[u] up to starts[u + 1].
    """
    trained = np.cumsum(trains)
    return np.repeat(trained[starts[1:] - 1], np.diff(starts)) - trained


def refuse_late(key: str, late: int, others: int) -> None:
    """Raise DataError if some of the `others`, events outside the training split, come before training events."""
    if late:
        raise DataError(
            f"{key}: {100 * late / others:.2g}% of the events of the evaluation, the test or no split come before "
            "training events of their users, whose histories would train on them; split by time: "
            "dataset.split={kind: last, …} or {kind: time, …}, and keep rows of no split in other files"
        )
