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
from persia_cli.data.read.row_groups import GroupedRows
from persia_cli.data.read.splits import PARTS, UNUSED, Parts
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
    contents: tuple[str, ...]
    """What identifies the content of each file."""


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
        return frozenset(feature.column_name for name in self.stores for feature, _ in self.dataset.features_of(name))

    @property
    def digests(self) -> tuple[str, ...]:
        """What identifies the events of each history."""
        return tuple(store.digest for store in self.stores.values())


def without_ready(dataset: ParquetDataset, schemas: Sequence[Any]) -> ParquetDataset:
    """Return the data set without the histories whose lists its files hold, as a log of served requests does."""
    there = frozenset.intersection(*(frozenset(schema.names) for schema in schemas)) if schemas else frozenset[str]()
    left = {
        name: history
        for name, history in dataset.histories.items()
        if not (columns := {feature.column_name for feature, _ in dataset.features_of(name)}) or not columns <= there
    }
    samples = dataset.samples if dataset.samples and dataset.samples.of in left else None
    return dataset.model_copy(update={"histories": left, "samples": samples})


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
            # The events are a data set of their own, some of whose keys have other names.
            key = f"dataset.histories.{name}"
            text = str(error).replace("dataset.path", f"{key}.path").replace("dataset.sparse", f"{key}.columns")
            raise DataError(text) from error
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
        stores[name] = event_store(history, _stored(dataset, name), events.rows, events.contents, form)
    return Histories(dataset, stores)


def _complete(dataset: ParquetDataset, name: str) -> History:
    """Return a history with what its defaults stand for."""
    history = dataset.histories[name]
    is_of_windows = dataset.samples is not None and dataset.samples.of == name
    changed = {"path": history.path or dataset.path, "ties": history.ties or "strict"}
    return history.model_copy(update=changed | ({"ties": "file_order"} if is_of_windows else {}))


def _event_files(dataset: ParquetDataset, name: str) -> ParquetDataset:
    """Return a data set of a history's events alone."""
    history = dataset.histories[name]
    features = {column: SparseFeature(name=column) for column in history.columns}
    features |= {column: _of_events(feature, column) for feature, column in dataset.features_of(name)}
    changed = {
        "path": history.path,
        "labels": (),
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


def windows(parts: Parts, rows: GroupedRows, store: EventStore, length: int) -> Parts:
    """Return the part of each row of a data set, where of the training rows only the last ones of windows train.

    They are each user's newest training event, and of those before it every `length`-th, but no first event: it has no
    history. Raises DataError if a user has training events after others, which histories would train on.
    """
    first_places = [store.first_places.get((group.path, group.number)) for group in rows.groups]
    pairs = [(place, group) for place, group in zip(first_places, rows.groups, strict=True) if place is not None]
    if not pairs:
        raise DataError(
            "dataset.samples: windows are of samples that are events, and none is among those of their history; leave "
            "path out of the history"
        )
    size = max([int(store.places.max()) + 1, *(place + group.rows for place, group in pairs)])
    of_events = np.full(size, UNUSED, np.int8)
    for place, group in pairs:
        of_events[place : place + group.rows] = parts[group.first_row : group.first_row + group.rows]
    ordered, sizes = of_events[store.places], np.diff(store.starts)
    trains = ordered == PARTS["train"]
    trained = np.cumsum(trains)
    after = np.repeat(trained[store.starts[1:] - 1], sizes) - trained
    if late := int(np.count_nonzero((after > 0) & ~trains & (ordered != UNUSED))):
        raise DataError(
            f"dataset.samples: {count(late, 'evaluation event')} come before training events of their users, whose "
            "histories would train on them; split by time: dataset.split={kind: last, …} or {kind: time, …}"
        )
    is_first = np.zeros(trains.size, np.bool_)
    is_first[store.starts[:-1]] = True
    kept = np.zeros(size, np.bool_)
    kept[store.places] = trains & (after % length == 0) & ~is_first
    chosen = np.where(parts == PARTS["train"], UNUSED, parts).astype(np.int8)
    for place, group in pairs:
        chosen[group.first_row : group.first_row + group.rows][kept[place : place + group.rows]] = PARTS["train"]
    return chosen
