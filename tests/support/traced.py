"""A trace file in Chrome's format, read back into spans."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Seen(NamedTuple):
    """One span of a trace file; times in microseconds, `waited` for asynchronous ones."""

    replica: str
    lane: str
    name: str
    step: int
    rank: int | None
    begin: float
    end: float
    waited: bool
    arguments: dict[str, Any]

    def overlaps(self, other: "Seen") -> bool:
        """Return True if both overlap."""
        return self.begin < other.end and other.begin < self.end


def read_trace(path: Path) -> list[Seen]:
    """Return the spans of a file by begin; fails for events that a viewer could not place."""
    events = json.loads(path.read_text())["traceEvents"]
    replicas = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return sorted(_spans(events, replicas, lanes), key=lambda span: (span.begin, -span.end))


def _spans(events: list[dict[str, Any]], replicas: dict[int, str], lanes: dict[tuple[int, int], str]) -> Iterator[Seen]:
    begun: dict[tuple[str, str, str], dict[str, Any]] = {}
    for event in events:
        if event["ph"] == "M":
            continue
        end = event["ts"] + event.get("dur", 0.0)
        key = (event.get("cat", ""), event.get("id", ""), event["name"])
        if event["ph"] == "b":
            assert key not in begun
            begun[key] = event
            continue
        start = event if event["ph"] == "X" else begun.pop(key)
        assert event["ph"] in "Xe"
        assert 0 <= start["ts"] <= end
        waited = event["ph"] == "e"
        lane = "" if waited else lanes[event["pid"], event["tid"]]
        about = event["args"]
        yield Seen(
            replicas[event["pid"]],
            lane,
            event["name"],
            about["step"],
            about.get("rank"),
            start["ts"],
            end,
            waited,
            about,
        )
    assert not begun


def assert_threads_do_one_thing_at_a_time(spans: list[Seen]) -> None:
    """Require that of two spans of one thread either one lies within the other or they do not overlap."""
    open_ones: dict[tuple[str, str], list[Seen]] = {}
    for span in spans:
        if span.waited:
            continue
        outer = open_ones.setdefault((span.replica, span.lane), [])
        while outer and outer[-1].end <= span.begin:
            outer.pop()
        assert not outer or span.end <= outer[-1].end, f"{span} begins within {outer[-1]} and ends after it"
        outer.append(span)
