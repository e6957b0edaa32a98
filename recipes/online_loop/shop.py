"""A shop whose fashion turns: it asks a server which items a user may like, shows some, and users click.

    python shop.py DIR history                                # DIR/samples: clicks of the time before
    python shop.py DIR open SECONDS SERVER [SERVER ...]       # DIR/events; the first server decides

A user has a taste and an item has a look, both angles. The closer they are, the likelier is a click. While the shop is
open, the looks of all items turn at the same speed. No program but this one knows the angles.
"""

import heapq
import http.client
import json
import sys
import time
import uuid
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

USERS, ITEMS, HISTORY = 300, 60, 60_000
TURN_S = 400.0
"""Seconds in which fashion turns around once."""
VISITS_PER_S, ASKED, BEST, TRIED = 40, 20, 3, 2
"""A visit asks for so many items, and shows a few by chance, and the best of the others."""
WRITE_S = 1.0
TWICE, LATE, LATE_S = 0.02, 0.03, 20.0
"""Fractions of events that are sent twice, and of clicks that come so many seconds later than others."""
draw = np.random.default_rng(0)
taste, look = draw.uniform(0, 2 * np.pi, USERS), draw.uniform(0, 2 * np.pi, ITEMS)


def chance(user: Any, item: Any, seconds: float) -> Any:
    """Return the probability that a user clicks an item when the shop has been open for so many seconds."""
    angle = taste[user] - look[item] - 2 * np.pi * seconds / TURN_S
    return 1 / (1 + np.exp(1.5 - 2.5 * np.cos(angle)))


def write(table: Any, path: Path) -> None:
    """Write a file that appears whole."""
    hidden = path.with_name(f".{path.name}")
    pq.write_table(table, hidden)
    hidden.rename(path)


def history(folder: Path) -> None:
    """Write the clicks on items that were shown by chance before the shop opens."""
    user, item = draw.integers(USERS, size=HISTORY), draw.integers(ITEMS, size=HISTORY)
    click = (draw.random(HISTORY) < chance(user, item, 0.0)).astype("i1")
    now = int(time.time())
    write(pa.table({"user": user, "item": item, "time": np.full(HISTORY, float(now)), "click": click}),
          folder / "samples" / f"{now}.parquet")  # fmt: skip


class Server:
    """A connection to a server of the model."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)

    def scores(self, name: str, user: int, items: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability of a click on each item; `name` is the id of the request in its log."""
        inputs = [
            {"name": "user", "datatype": "INT64", "shape": [1], "data": [user]},
            {"name": "item", "datatype": "INT64", "shape": [len(items)], "data": items.tolist()},
        ]
        self._connection.request("POST", "/v2/models/loop/infer", json.dumps({"id": name, "inputs": inputs}))
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the server answered {answer.status}: {text.decode()}")
        return np.array(json.loads(text)["outputs"][0]["data"])


class Events:
    """Events that happen at their time, and are then written; a few are written twice."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, count()
        self._waiting: list[tuple[float, int, dict[str, Any]]] = []

    def add(self, name: str, item: int, event: str, at: float) -> None:
        """Add an event that happens at a time."""
        row = {"request_id": name, "item": item, "event": event, "time": at}
        for arrival in [at, at + WRITE_S][: 1 + (draw.random() < TWICE)]:
            heapq.heappush(self._waiting, (arrival, next(self._number), row))

    def write(self, until: float) -> None:
        """Write the events up to a time as a file."""
        rows = []
        while self._waiting and self._waiting[0][0] <= until:
            rows.append(heapq.heappop(self._waiting)[2])
        if rows:
            write(pa.Table.from_pylist(rows), self._folder / f"{until:.6f}.parquet")


def visit(servers: list[Server], events: Events, seconds: float) -> None:
    """Let a user come, look at what the first server likes best for him, and click."""
    name, user = uuid.uuid4().hex, int(draw.integers(USERS))
    items = draw.choice(ITEMS, ASKED, replace=False)
    scores, *_ = [server.scores(name, user, items) for server in servers]
    now = time.time()
    tried = draw.choice(items, TRIED, replace=False)
    ranked = items[np.argsort(-scores)]
    best = ranked[~np.isin(ranked, tried)][:BEST]
    for event, shown in (("best", best), ("tried", tried)):
        for item in shown.tolist():
            events.add(name, item, event, now)
            if draw.random() < chance(user, item, seconds):
                events.add(name, item, "click", now + draw.exponential() + LATE_S * (draw.random() < LATE))


def open_shop(folder: Path, open_s: float, addresses: list[str]) -> None:
    """Let users come for so many seconds."""
    servers, events, begin = [Server(address) for address in addresses], Events(folder / "events"), time.time()
    written = begin
    for number in range(round(open_s * VISITS_PER_S)):
        time.sleep(max(0.0, begin + number / VISITS_PER_S - time.time()))
        now = time.time()
        if now >= begin + open_s:
            break
        visit(servers, events, now - begin)
        if now >= written + WRITE_S:
            events.write(now)
            written = now
    events.write(time.time())


if __name__ == "__main__":
    folder, what, *more = sys.argv[1:]
    if what == "history":
        history(Path(folder))
    else:
        open_shop(Path(folder), float(more[0]), more[1:])
