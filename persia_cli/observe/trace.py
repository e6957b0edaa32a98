"""Traces: the work and the waits of each replica in a window of steps, in nanoseconds of CLOCK_MONOTONIC.

Processes of one machine share that clock. To align machines, a trace also has the difference to the wall clock, and an
identifier of the machine's boot. In the end the traces of all replicas are joined in Chrome's trace format, which
Perfetto and chrome://tracing open ("Trace Event Format", Google, 2016): the work of threads as complete events, waits
during other work as asynchronous events.
"""

import shutil
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from persia_cli.control.position import TRAIN
from persia_cli.wire.parts import BatchId

SPANS_LIMIT = 50_000
"""Largest number of spans of a replica, about 20 MB; later ones are only counted."""
LOOP = "loop"
"""Name of the thread of a role's poll loop in traces."""
PARTS = "trace"
"""Folder of a run with the traces of its replicas until they are joined."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NOTHING: AbstractContextManager[None] = nullcontext()


class Span(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A piece of work or a wait from `begin_ns` to `end_ns`.

    `lane` is the thread that did the work; it is empty for a wait during which the thread did other work. The end of a
    wait that was not over when the replica ended is None.
    """

    lane: str
    name: str
    step: int
    rank: int | None
    begin_ns: int
    end_ns: int | None
    figures: dict[str, int] = {}


class ReplicaTrace(msgspec.Struct, frozen=True):
    """The trace of one replica; `behind_ns` is the wall clock (since 1970) minus the monotonic clock."""

    replica: str
    boot: str
    behind_ns: int
    dropped: int
    spans: list[Span]


# Made at import, like the decoder of jobs in `plan/job.py`, since threads must not be the first to use a type.
_DECODER = msgspec.json.Decoder(ReplicaTrace)


class _Doing:
    """A context that records its duration as a span."""

    __slots__ = ("_begin", "_lane", "_name", "_rank", "_step", "_trace")

    def __init__(self, trace: "Trace", lane: str, name: str, step: int, rank: int | None) -> None:
        self._trace, self._lane, self._name, self._step, self._rank = trace, lane, name, step, rank

    def __enter__(self) -> None:
        self._begin = self._trace.clock()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        trace = self._trace
        trace.add(Span(self._lane, self._name, self._step, self._rank, self._begin, trace.clock()))


class Trace:
    """The recorder of one replica's spans for the training steps [first, last); it ignores other steps.

    Several threads may use it at the same time, since single operations on a list or a dict are atomic.
    """

    def __init__(self, first: int = 0, last: int = 0, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock = clock
        self.first, self.last = first, last
        self.dropped = 0
        self._spans: list[Span] = []
        self._begun: dict[tuple[str, BatchId | int], int] = {}

    def covers(self, what: BatchId | int) -> bool:
        """Return True if a training step, or the step of a batch, is traced."""
        if isinstance(what, BatchId):
            return what.split == TRAIN and self.first <= what.step < self.last
        return self.first <= what < self.last

    def span(self, lane: str, name: str, what: BatchId | int) -> AbstractContextManager[None]:
        """Return a context that records the work of thread `lane` on a batch or training step."""
        if not self.covers(what):
            return _NOTHING
        return _Doing(self, lane, name, *_step_and_rank(what))

    def begin(self, name: str, what: BatchId | int) -> None:
        """Begin a wait for a batch or step, unless it has begun already."""
        if self.covers(what):
            self._begun.setdefault((name, what), self.clock())

    def end(self, name: str, what: BatchId | int, lane: str = "", **figures: int) -> None:
        """End a wait, if it has begun. With a `lane`, that thread did nothing else meanwhile."""
        if self._begun and (begin := self._begun.pop((name, what), None)) is not None:
            self.add(Span(lane, name, *_step_and_rank(what), begin, self.clock(), figures))

    def add(self, span: Span) -> None:
        """Add a span; over the limit, it is only counted."""
        if len(self._spans) < SPANS_LIMIT:
            self._spans.append(span)
        else:
            self.dropped += 1

    def write(self, run_dir: Path, replica: str) -> None:
        """Write the trace of a replica to the run directory, if any steps are traced."""
        if self.last <= self.first:
            return
        waiting = [Span("", name, *_step_and_rank(what), begin, None) for (name, what), begin in self._begun.items()]
        behind = time.time_ns() - time.monotonic_ns()
        part = ReplicaTrace(replica, _boot(), behind, self.dropped, self._spans + waiting)
        folder = run_dir / PARTS
        folder.mkdir(exist_ok=True)
        (folder / f"{replica}.json").write_bytes(msgspec.json.encode(part))


def _step_and_rank(what: BatchId | int) -> tuple[int, int | None]:
    return (what.step, what.rank) if isinstance(what, BatchId) else (what, None)


def _boot() -> str:
    """Return an identifier of this machine's boot."""
    return _BOOT.read_text().strip() if _BOOT.exists() else socket.gethostname()


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
