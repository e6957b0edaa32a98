"""The joined trace of all replicas in Chrome's trace format, which Perfetto and chrome://tracing open.

The format is described in "Trace Event Format" (Google, 2016). The work of threads is written as complete events, waits
during other work as asynchronous events.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from persia_cli.observe.trace import PARTS, ReplicaTrace

_DECODER = msgspec.json.Decoder(ReplicaTrace)


class Joined(NamedTuple):
    """The contents of a trace file."""

    spans: int
    dropped: int
    """Number of spans over the limits of replicas."""
    missing: list[str]
    """Names of replicas without spans, since they were killed or had no work in the window."""


def join_trace(run_dir: Path, replicas: Sequence[str], path: Path) -> Joined:
    """Write the traces of replicas in a run directory to one file, if there are any, and remove them."""
    parts = read_parts(run_dir)
    clock = "CLOCK_MONOTONIC" if len({part.boot for part in parts}) <= 1 else "wall clocks"
    if events := chrome_events(parts, list(replicas)):
        whole = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"clock": clock}}
        path.write_bytes(msgspec.json.encode(whole))
    shutil.rmtree(run_dir / PARTS, ignore_errors=True)
    found = {part.replica for part in parts if part.spans}
    missing = [replica for replica in replicas if replica not in found]
    return Joined(sum(len(part.spans) for part in parts), sum(part.dropped for part in parts), missing)


def read_parts(run_dir: Path) -> list[ReplicaTrace]:
    """Return the traces of replicas in a run directory, ordered by name; incomplete ones are skipped."""
    parts = []
    for path in sorted((run_dir / PARTS).glob("*.json")):
        try:
            parts.append(_DECODER.decode(path.read_bytes()))
        except msgspec.DecodeError:
            continue
    return parts


def chrome_events(parts: list[ReplicaTrace], order: list[str]) -> list[dict[str, Any]]:
    """Return the traces as events of Chrome's trace format: replicas in the given order, time 0 at the first span.

    Traces of one boot share a clock to the nanosecond; those of other machines are aligned by their wall clocks.
    """
    known = [part for part in parts if part.spans]
    if not known:
        return []
    own = known[0].boot
    shifts = {part.replica: 0 if part.boot == own else part.behind_ns - known[0].behind_ns for part in known}
    zero = min(span.begin_ns + shifts[part.replica] for part in known for span in part.spans)
    events: list[dict[str, Any]] = []
    for part in known:
        events += _events_of(part, order.index(part.replica) + 1, shifts[part.replica] - zero)
    return events


def _events_of(part: ReplicaTrace, process: int, shift_ns: int) -> list[dict[str, Any]]:
    named = {"ph": "M", "pid": process}
    events: list[dict[str, Any]] = [
        named | {"name": "process_name", "args": {"name": part.replica}},
        named | {"name": "process_sort_index", "args": {"sort_index": process}},
    ]
    lanes = sorted({span.lane for span in part.spans if span.lane})
    events += [named | {"name": "thread_name", "tid": n, "args": {"name": name}} for n, name in enumerate(lanes, 1)]
    latest = max(span.end_ns or span.begin_ns for span in part.spans)
    for number, span in enumerate(sorted(part.spans, key=lambda span: span.begin_ns)):
        end = latest if span.end_ns is None else span.end_ns
        arguments: dict[str, Any] = {"step": span.step} | span.figures
        arguments |= {} if span.rank is None else {"rank": span.rank}
        arguments |= {"unfinished": True} if span.end_ns is None else {}
        common = {"pid": process, "name": span.name, "args": arguments}
        at, until = (span.begin_ns + shift_ns) / 1000, (end + shift_ns) / 1000
        if span.lane:
            tid = lanes.index(span.lane) + 1
            events.append(common | {"ph": "X", "tid": tid, "ts": at, "dur": round(until - at, 3)})
        else:
            own = {"cat": part.replica, "id": f"{process}.{number}", "tid": 0}
            events += [common | own | {"ph": "b", "ts": at}, common | own | {"ph": "e", "ts": until}]
    return events
