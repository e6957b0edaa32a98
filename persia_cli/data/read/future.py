"""The future of training rows: events that are in histories of training rows, but in no training row themselves.

A network that learns from all positions of a history would train on them, and its evaluation would be of what it was
trained on. As inputs alone they do no harm.
"""

import numpy as np

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.histories import History
from persia_cli.config.schema.split import LastSplit, TimeSplit
from persia_cli.data.read.events import users_and_times
from persia_cli.data.read.histories import later, refuse_late
from persia_cli.data.read.row_groups import GroupedRows
from persia_cli.data.read.scan import ParquetScan
from persia_cli.data.read.splits import PARTS


def require_no_future(found: ParquetScan, name: str) -> None:
    """Raise DataError if training rows of a data set have other rows in a history.

    Unless the kind of the split excludes it, users and times are read once, and take about 50 bytes a row.
    """
    history = found.settled.histories[name]
    if found.settled.samples is not None or _is_in_order(found.settled, history):
        return  # windows were examined when they were made
    data, selector = GroupedRows(found.filesystem, found.groups), found.selector
    columns = []
    for group, table in data.read(dict.fromkeys([history.user, history.time, *selector.columns])):
        users, times, there = users_and_times(history, group, 0, table)
        parts = selector.parts_in(group.first_row, table)
        if parts is None:
            parts = np.full(group.rows, PARTS[group.part or "train"], np.int8)
        columns.append((users[there], times[there], parts[there] == PARTS["train"]))
    users, times, trains = map(np.concatenate, zip(*columns, strict=True))
    if not users.size:
        return
    order = np.lexsort((times, users))  # stable: ties stay in the order of rows
    users, times, trains = users[order], times[order], trains[order]
    starts = np.concatenate([[0], np.flatnonzero(users[1:] != users[:-1]) + 1, [users.size]])
    late = ~trains & (later(trains, starts) > 0)
    if history.ties != "file_order":
        newest = np.maximum.reduceat(np.where(trains, times, np.iinfo(np.int64).min), starts[:-1])
        late &= times < np.repeat(newest, np.diff(starts))
    key = f"dataset.histories.{name}"
    refuse_late(key, int(np.count_nonzero(late)), int(np.count_nonzero(~trains)))


def _is_in_order(dataset: ParquetDataset, history: History) -> bool:
    """Return True if all training rows of a user come before the others by the kind of the split."""
    split = dataset.split
    if isinstance(split, TimeSplit):
        return (split.column, split.format) == (history.time, history.format)
    if not isinstance(split, LastSplit):
        return False
    return (split.group, split.order, split.format) == (history.user, history.time, history.format)
