"""The recordings of a run's replicas: a file for each, in the run directory, and the timeline of all.

A file has a line for each portion that the coordinator got of a process, on the coordinator's clock. All of them become
one file in Chrome's trace format, which Perfetto and chrome://tracing open ("Trace Event Format", Google, 2016): the
work of threads as complete events, waits during other work as asynchronous events.
"""

import shutil
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from persia_cli.observe.trace import Span

RECORDINGS, SUFFIX = "trace", ".jsonl"
"""Folder of a run with the recordings of its replicas, and the end of their names."""


class TracePortion(msgspec.Struct, frozen=True):
    """Spans of one process, in the order of `number`; a number may occur twice.

    The coordinator's clock is `ahead_ns` before that of the process, with a maximum error of `within_ns`, which is None
    before the first measurement.
    """

    replica: str
    process: str
    """A random name: a later process of the replica has another."""
    number: int
    clock: str
    """The result of `clock_name` there; in the file, that of the coordinator."""
    ahead_ns: int
    within_ns: int | None
    dropped: int
    """Spans over the limit, so far."""
    is_last: bool
    spans: list[Span]
    behind_ns: int = 0
    """In the file, the coordinator's wall clock less its CLOCK_MONOTONIC, since a later one may have another clock."""


# Created at import, like the decoder of jobs in `plan/job.py`, since threads must not be the first to use a type.
PORTIONS = msgspec.json.Decoder(TracePortion)


class ReplicaTrace(NamedTuple):
    """The recording of one replica, on the coordinator's clock."""

    replica: str
    spans: list[Span]
    dropped: int = 0
    """Spans over the limit."""
    is_whole: bool = True
    """False if a portion of a process is missing, or its clock was never compared."""
    within_ns: int = 0
    """Maximum error of its times."""


class Joined(NamedTuple):
    """The contents of a trace file."""

    spans: int
    dropped: int
    """Number of spans over the limits of replicas."""
    missing: list[str]
    """Names of replicas without spans, since they were killed or had no work in the window."""
    partial: list[str]
    """Names of replicas with an incomplete recording: a process was killed or cut off, or a disk was full."""


def recording_of(run_dir: Path, replica: str) -> Path:
    """Return the file with the recording of a replica."""
    return run_dir / RECORDINGS / f"{replica}{SUFFIX}"


def remove_recordings(run_dir: Path) -> None:
    """Remove the recordings of a run, if there are any."""
    shutil.rmtree(run_dir / RECORDINGS, ignore_errors=True)


def join_recordings(run_dir: Path, replicas: Sequence[str], path: Path) -> Joined:
    """Write the recordings of a run's replicas to one file, in this order, if there are any."""
    traces = read_recordings(run_dir)
    if events := chrome_events(traces, list(replicas)):
        within_us = max(trace.within_ns for trace in traces) // 1000
        clock = {"clock": "CLOCK_MONOTONIC of the coordinator", "replicas_shifted_by_at_most_us": within_us}
        path.write_bytes(msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": clock}))
    recorded = {trace.replica: trace for trace in traces if trace.spans}
    missing = [replica for replica in replicas if replica not in recorded]
    partial = [replica for replica in replicas if replica in recorded and not recorded[replica].is_whole]
    spans, dropped = sum(len(trace.spans) for trace in traces), sum(trace.dropped for trace in traces)
    return Joined(spans, dropped, missing, partial)


def read_recordings(run_dir: Path) -> list[ReplicaTrace]:
    """Return the recordings of a run's replicas, ordered by name; incomplete lines are skipped."""
    portions_by_file = {path: list(_portions(path)) for path in sorted((run_dir / RECORDINGS).glob(f"*{SUFFIX}"))}
    first = next((portion for portions in portions_by_file.values() for portion in portions), None)
    return (
        [_replica_trace(path.name.removesuffix(SUFFIX), portions_by_file[path], first) for path in portions_by_file]
        if first
        else []
    )


def _replica_trace(replica: str, lines: Sequence[TracePortion], first: TracePortion) -> ReplicaTrace:
    """Return the recording in the lines of a file, on the clock of the coordinator that wrote the first line of all."""
    portions = {(portion.process, portion.number): portion for portion in lines}
    whole, dropped, within_ns = True, 0, 0
    spans: list[Span] = []
    for _, of_process in groupby(portions.values(), key=lambda portion: portion.process):
        known = list(of_process)
        measured = min(known, key=lambda portion: (portion.within_ns is None, portion.within_ns))
        dropped += max(portion.dropped for portion in known)
        whole &= known[-1].is_last and known[-1].number == len(known)
        if measured.within_ns is None:
            whole &= not any(portion.spans for portion in known)
            continue
        within_ns = max(within_ns, measured.within_ns)
        shift_ns = measured.ahead_ns
        shift_ns += 0 if measured.clock == first.clock else measured.behind_ns - first.behind_ns
        spans += [_shifted(span, shift_ns) for portion in known for span in portion.spans]
    return ReplicaTrace(replica, spans, dropped, whole, within_ns)


def _portions(path: Path) -> Iterator[TracePortion]:
    for line in path.read_bytes().splitlines():
        try:
            yield PORTIONS.decode(line)
        except msgspec.DecodeError:
            continue


def _shifted(span: Span, by_ns: int) -> Span:
    end_ns = None if span.end_ns is None else span.end_ns + by_ns
    return msgspec.structs.replace(span, begin_ns=span.begin_ns + by_ns, end_ns=end_ns) if by_ns else span


def chrome_events(traces: Sequence[ReplicaTrace], order: list[str]) -> list[dict[str, Any]]:
    """Return traces as events of Chrome's trace format: replicas in the given order, time 0 at the first span."""
    known = [trace for trace in traces if trace.spans and trace.replica in order]
    if not known:
        return []
    zero = min(span.begin_ns for trace in known for span in trace.spans)
    return [event for trace in known for event in _events_of(trace, order.index(trace.replica) + 1, zero)]


def _events_of(trace: ReplicaTrace, process: int, zero_ns: int) -> list[dict[str, Any]]:
    named = {"ph": "M", "pid": process}
    events: list[dict[str, Any]] = [
        named | {"name": "process_name", "args": {"name": trace.replica}},
        named | {"name": "process_sort_index", "args": {"sort_index": process}},
    ]
    lanes = sorted({span.lane for span in trace.spans if span.lane})
    events += [named | {"name": "thread_name", "tid": n, "args": {"name": name}} for n, name in enumerate(lanes, 1)]
    latest = max(span.end_ns or span.begin_ns for span in trace.spans)
    for number, span in enumerate(sorted(trace.spans, key=lambda span: span.begin_ns)):
        end = latest if span.end_ns is None else span.end_ns
        arguments: dict[str, Any] = {"step": span.step} | span.figures
        arguments |= {} if span.rank is None else {"rank": span.rank}
        arguments |= {"unfinished": True} if span.end_ns is None else {}
        common = {"pid": process, "name": span.name, "args": arguments}
        at, until = (span.begin_ns - zero_ns) / 1000, (end - zero_ns) / 1000
        if span.lane:
            tid = lanes.index(span.lane) + 1
            events.append(common | {"ph": "X", "tid": tid, "ts": at, "dur": round(until - at, 3)})
        else:
            identity = {"cat": trace.replica, "id": f"{process}.{number}", "tid": 0}
            events += [common | identity | {"ph": "b", "ts": at}, common | identity | {"ph": "e", "ts": until}]
    return events
