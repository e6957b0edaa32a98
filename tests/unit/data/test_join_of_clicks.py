"""The join of the recipe online_loop: batch after batch has the samples that a loop over all requests finds."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.online_loop import join as joining

WINDOW, BATCH, LAST = joining.WINDOW_S, 4, 11
ASKED = pa.schema(
    {"request_id": pa.string(), "item": pa.int64(), "request_time": pa.timestamp("us", "UTC"), "user": pa.int64()}
)


class Item(NamedTuple):
    """An item of a request: the events that show it, and its clicks, in seconds after the request."""

    shown: list[str]
    clicks: list[int]


class Request(NamedTuple):
    """A request, and the seconds after which its client repeats it."""

    time: int
    again: int
    items: Sequence[Item]


ITEM = st.builds(
    Item, st.lists(st.sampled_from(["best", "tried"]), max_size=2), st.lists(st.integers(0, 2 * WINDOW), max_size=3)
)
REQUEST = st.builds(Request, st.integers(0, LAST), st.integers(0, WINDOW), st.tuples(ITEM, ITEM))


def asked_of(requests: list[Request], since: int) -> Any:
    rows = [
        {"request_id": str(name), "item": item, "request_time": time * 1_000_000, "user": name}
        for name, request in enumerate(requests)
        for time in {request.time, request.time + request.again}
        for item in range(len(request.items))
        if time >= since
    ]
    return pa.Table.from_pylist(rows, ASKED)


def events_of(requests: list[Request], since: int) -> Any:
    """All events since a time, of which every second one comes twice, and a click on a request that is not logged."""
    rows = [(str(len(requests)), 0, "best", LAST), (str(len(requests)), 0, "click", LAST)]
    for name, request in enumerate(requests):
        for number, item in enumerate(request.items):
            rows += [(str(name), number, event, request.time) for event in item.shown]
            rows += [(str(name), number, "click", request.time + after) for after in item.clicks]
    rows = [row for row in rows if row[3] >= since]
    names = joining.EVENTS.names
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows + rows[::2]], joining.EVENTS)


@settings(max_examples=40, deadline=None)
@given(st.lists(REQUEST, max_size=4))
def test_batches_have_the_samples_of_a_loop_over_all_requests(requests: list[Request]) -> None:
    """Repeated requests, events that come twice, clicks that are late or missing: each shown item is there once."""
    found = []
    for begin in range(0, LAST + 1, BATCH):
        asked, events = (make(requests, begin - WINDOW) for make in (asked_of, events_of))
        found += joining.join(asked, events, begin, begin + BATCH).to_pylist()
    expected = [
        (str(name), number, request.time, name, "tried" in item.shown, int(min(item.clicks, default=99) <= WINDOW))
        for name, request in enumerate(requests)
        for number, item in enumerate(request.items)
        if item.shown
    ]
    columns = ("request_id", "item", "time", "user", "tried", "click")
    assert sorted(tuple(row[name] for name in columns) for row in found) == expected


def test_only_files_since_a_time_are_read(tmp_path: Path) -> None:
    for number in range(3):
        joining.write(pa.table({"n": [number]}), tmp_path / f"{number}.parquet")
        os.utime(tmp_path / f"{number}.parquet", (100 * number, 100 * number))
    (tmp_path / ".half.parquet").write_bytes(b"being written")
    assert joining.read(tmp_path, 0).column("n").to_pylist() == [0, 1, 2]
    assert joining.read(tmp_path, 100).column("n").to_pylist() == [1, 2]
    assert joining.read(tmp_path, 300) is None
    assert joining.read(tmp_path, 300, joining.EVENTS).num_rows == 0
