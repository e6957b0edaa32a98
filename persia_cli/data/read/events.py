"""Stores of events, in order of user, time, file and row, so that a sample's earlier events lie next to each other.

A store is one file in the cache of converted text, made once on a machine and mapped read-only by all its loaders. It
is found by its event files' places and versions, and by the columns and rules that its events are made by; its digest
is equal for copies of the files. It holds flat arrays of 8-byte values, then a description and its length:

    times, places, and each column's ids   [events]
    users                                  [users], ascending
    starts                                 [users + 1]: the first event of each user, and the number of events

A user is its id mixed one to one, so that users spread evenly over partitions: events are first divided by user into
partitions that fit into memory, and each is sorted for itself. A place is the number of a row over all files.

An event has a user, a time and all ids: a null is nothing that a model can predict. Other rows are left out.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.config.schema.features import Label, SparseFeature
from persia_cli.config.schema.histories import History
from persia_cli.data.read.arrow_types import UnusableValueError
from persia_cli.data.read.cache import PREFIX, cache_folder, use
from persia_cli.data.read.decode import decode_ids, decode_labels
from persia_cli.data.read.ids import NULL_ID
from persia_cli.data.read.row_groups import GroupedRows, RowGroup
from persia_cli.data.read.times import remedy, time_integers
from persia_cli.data.read.values import id_values
from persia_cli.errors import DataError
from persia_cli.kernels.rows.splitmix import mix64

_VERSION = 2
_PARTITION_BYTES = 1 << 28
"""Bytes of the events that are sorted at a time; sorting takes about twice as many more."""
_MOST_PARTITIONS = 512
_NEVER = np.iinfo(np.int64).min
"""The time of a sample without one: no event is earlier."""
_NOT_AMONG_EVENTS = -1

Integers = NDArray[np.int64]
FirstPlaces = Mapping[tuple[tuple[str, int], int], int]
"""The place of the first row of each row group, by the content of its file and its number."""


class EventCounts(msgspec.Struct, frozen=True):
    """The numbers of events of a store, and of the rows that are none."""

    events: int
    users: int
    columns: int
    incomplete: int
    """Rows without a user, a time or an id."""
    negative: int
    """Other rows whose label is not 1, if only those are events."""


_COUNTS = msgspec.json.Decoder(EventCounts)


@dataclass(frozen=True, slots=True, eq=False)
class EventStore:
    """Mapped arrays of events, as the module describes them."""

    digest: str
    counts: EventCounts
    times: Integers
    places: Integers
    ids: tuple[NDArray[np.uint64], ...]
    """The ids of each column."""
    users: NDArray[np.uint64]
    starts: Integers
    _first_places: FirstPlaces

    def first_place(self, group: RowGroup) -> int | None:
        """Return the place of the first row of a row group; None if its rows are no events."""
        return self._first_places.get((group.content, group.number))

    def spans(
        self, history: History, group: RowGroup, start: int, table: Any, rows: Integers | None
    ) -> tuple[Integers, Integers]:
        """Return for samples the spans of their earlier events, int64 [n, 2], and their times, int64 [n].

        The samples are these rows (None: all) of a table that begins with row `start` of a row group. Raises DataError
        for a user or a time that cannot be read.
        """
        # Most data has no histories, and numba takes half a second to import.
        from persia_cli.kernels.batch.spans import find_events

        users, asked, _ = users_and_times(history, group, start, table)
        places = np.full(asked.size, _NOT_AMONG_EVENTS)
        if history.ties == "file_order" and (first := self.first_place(group)) is not None:
            places = np.arange(first + start, first + start + asked.size)
        if rows is not None:
            users, asked, places = users[rows], asked[rows], places[rows]
        spans = np.empty((2, asked.size), np.int64)
        find_events(self.users, self.starts, self.times, self.places, users, asked, places, *spans)
        return spans.T, asked


def users_and_times(
    history: History, group: RowGroup, start: int, table: Any
) -> tuple[NDArray[np.uint64], Integers, NDArray[np.bool_]]:
    """Return users as stores have them, times, and the rows that have both; a null time is before all others.

    `table` begins with row `start` of the row group. Raises DataError for a value that is no user or no time.
    """
    column = history.user
    try:
        users = id_values(table.column(column), column, None, np.uint64(NULL_ID))
        column = history.time
        times = time_integers(table.column(column), history.format)
    except UnusableValueError as bad:
        what = "user" if column == history.user else "time"
        correct = remedy(history.format) if what == "time" else "correct it, or leave it empty"
        where = group.place_of(start + bad.index)
        raise DataError(f"{group}: {bad} in {where} of column {column}, the {what} of a history; {correct}") from bad
    except pa.ArrowInvalid as error:
        raise DataError(f"{group}: column {column} has integers that do not fit into 63 bits") from error
    there = (users != np.uint64(NULL_ID)) & times.is_valid().to_numpy(zero_copy_only=False)
    return mix64(users), times.fill_null(_NEVER).to_numpy(zero_copy_only=False), there


def event_store(
    history: History, columns: Sequence[SparseFeature], label: Label | None, rows: GroupedRows, form: str
) -> EventStore:
    """Return the store of the events in some row groups, with an array of ids for each of `columns`.

    With a `label` only rows where it is 1 are events. The store is made if it is not in the cache. `form` is how text
    files are read. Raises DataError for events that cannot be read, and for a cache that cannot be written.
    """
    rules = [_VERSION, history.user, history.time, history.format, form]
    rules += [feature.model_dump_json(exclude={"name", "pooling", "max_length"}) for feature in columns]
    rules += [label and label.model_dump_json()]
    contents = list(dict.fromkeys(group.content for group in rows.groups))
    folders = {
        group.path: sorted((name, str(value)) for name, value in group.constants.items()) for group in rows.groups
    }
    digest = sha256(repr((rules, list(folders.values()), contents)).encode()).hexdigest()
    versions = {group.path: group.version for group in rows.groups}
    name = sha256(repr((digest, versions, rows.filesystem.type_name)).encode()).hexdigest()[:40]
    path = cache_folder() / f"{PREFIX}{name}.events"
    use(path, partial(_make, history, columns, label, rows), "events are sorted")
    firsts = {(group.content, group.number): group.first_row for group in rows.groups}
    return _mapped(path, digest, firsts)


def _make(
    history: History, columns: Sequence[SparseFeature], label: Label | None, rows: GroupedRows, part: Path
) -> None:
    total = sum(group.rows for group in rows.groups)
    record = np.dtype([("user", "<u8"), ("time", "<i8"), ("place", "<i8"), ("ids", "<u8", (len(columns),))])
    bits = min(total * record.itemsize // _PARTITION_BYTES, _MOST_PARTITIONS - 1).bit_length()
    partitions = [part.with_suffix(f".{number}.part") for number in range(1 << bits)]
    left_out = Counter[str]()
    try:
        kept = _divide(_records(history, columns, label, rows, record, left_out), bits, partitions)
        if not kept:
            names = ", ".join([history.user, history.time, *(feature.column_name for feature in columns)])
            positive = f", and label {label.name}: 1" if label else ""
            raise DataError(
                f"no event has all of {names}{positive}, so all histories would be empty; correct user, time and "
                "columns in dataset.histories"
            )
        users, sizes = _sort(partitions, np.memmap(part, np.int64, "r+", shape=(2 + len(columns), kept)), record)
        with part.open("ab") as file:
            users.tofile(file)
            np.append(0, np.cumsum(sizes)).astype(np.int64).tofile(file)
            described = msgspec.json.encode(EventCounts(kept, users.size, len(columns), **left_out))
            file.write(described + len(described).to_bytes(8, "little"))
    finally:
        for partition in partitions:
            partition.unlink(missing_ok=True)


def _records(
    history: History,
    columns: Sequence[SparseFeature],
    label: Label | None,
    rows: GroupedRows,
    record: Any,
    left_out: Counter[str],
) -> Iterator[NDArray[Any]]:
    """Yield the events of each row group, and count the rows that are none."""
    names = [history.user, history.time, *(feature.column_name for feature in columns)]
    names += [label.name] if label else []
    for group, table in rows.read(dict.fromkeys(names)):
        users, times, there = users_and_times(history, group, 0, table)
        events = np.empty(times.size, record)
        events["user"], events["time"] = users, times
        events["place"] = np.arange(group.first_row, group.first_row + times.size)
        for number, feature in enumerate(columns):
            column = table.column(feature.column_name)
            events["ids"][:, number] = decode_ids(column, feature, False, group, None, Counter()).values
        there &= (events["ids"] != np.uint64(NULL_ID)).all(axis=1)
        left_out["incomplete"] += int(np.count_nonzero(~there))
        positive = there
        if label is not None:
            positive = there & (decode_labels(table.column(label.name), label, group, None, "logistic", False) == 1.0)
        left_out["negative"] += int(np.count_nonzero(there & ~positive))
        yield events[positive]


def _divide(parts: Iterator[NDArray[Any]], bits: int, partitions: Sequence[Path]) -> int:
    """Append events to the files of their partitions, by the first bits of their users; return their number."""
    total = 0
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in partitions]
        for events in parts:
            total += len(events)
            if not bits:
                events.tofile(files[0])
                continue
            numbers = events["user"] >> np.uint64(64 - bits)
            order = np.argsort(numbers, kind="stable")
            bounds = np.searchsorted(numbers[order], np.arange(len(files) + 1, dtype=np.uint64))
            for file, (first, last) in zip(files, pairwise(bounds), strict=True):
                events[order[first:last]].tofile(file)
    return total


def _sort(partitions: Sequence[Path], arrays: Any, record: Any) -> tuple[NDArray[np.uint64], Integers]:
    """Write the events of partitions into arrays [2 + columns, events]; return all users and their numbers of events.

    A partition is removed as soon as its events are written.
    """
    users, sizes, first = [], [], 0
    for partition in partitions:
        events = np.fromfile(partition, record)
        events = events[np.lexsort((events["time"], events["user"]))]  # stable: ties stay in the order of places
        of_partition, counts = np.unique(events["user"], return_counts=True)
        users.append(of_partition)
        sizes.append(counts)
        last = first + len(events)
        arrays[0, first:last], arrays[1, first:last] = events["time"], events["place"]
        arrays[2:, first:last] = events["ids"].T.view(np.int64)
        first = last
        partition.unlink()
    arrays.flush()
    return np.concatenate(users), np.concatenate(sizes)


def _mapped(path: Path, digest: str, firsts: FirstPlaces) -> EventStore:
    """Map the arrays of a store; raises DataError if the file is damaged."""
    try:
        whole = np.memmap(path, np.uint8, "r")
        length = int.from_bytes(whole[-8:].tobytes(), "little")
        counts = _COUNTS.decode(whole[-8 - length : -8].tobytes())
        sizes = [*[counts.events] * (2 + counts.columns), counts.users, counts.users + 1]
        if whole.size != 8 * sum(sizes) + length + 8:
            raise ValueError("it has another size than it was written with")
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise DataError(f"{path} is a damaged store of events ({error}); delete it, and it is made again") from error
    bounds = 8 * np.append(0, np.cumsum(sizes))
    times, places, *columns, users, starts = (
        np.asarray(whole[first:last]).view(np.int64) for first, last in pairwise(bounds)
    )
    ids = tuple(column.view(np.uint64) for column in columns)
    return EventStore(digest, counts, times, places, ids, users.view(np.uint64), starts, firsts)
