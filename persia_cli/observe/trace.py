"""A trace of one replica: what it did and waited for in a window of steps, in nanoseconds of CLOCK_MONOTONIC.

Processes of one machine share that clock. To set machines side by side a part also keeps the difference to the clock
of the day, and which boot of which machine it is of.
"""

import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType

import msgspec

from persia_cli.control.splits import TRAIN
from persia_cli.wire.messages import BatchId

SPANS_LIMIT = 50_000
"""Spans that a replica keeps, about 20 MB; what comes later is counted only."""
LOOP = "loop"
"""The thread of a trace that a role's poll loop runs in."""
PARTS = "trace"
"""Folder of a run that holds the replicas' parts until they are joined."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NOTHING: AbstractContextManager[None] = nullcontext()


class Span(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Something that took from `begin_ns` to `end_ns`.

    `lane` is the thread that did it; an empty one means that it was waited for while other things were done. The end of
    what was still waited for when the replica ended is None.
    """

    lane: str
    name: str
    step: int
    rank: int | None
    begin_ns: int
    end_ns: int | None
    figures: dict[str, int] = {}


class Part(msgspec.Struct, frozen=True):
    """The trace of one replica; `behind_ns` is the clock of the day (since 1970) minus the monotonic one."""

    replica: str
    boot: str
    behind_ns: int
    dropped: int
    spans: list[Span]


class _Doing:
    """A span that lasts as long as its block."""

    __slots__ = ("_begin", "_lane", "_name", "_rank", "_step", "_trace")

    def __init__(self, trace: "Trace", lane: str, name: str, step: int, rank: int | None) -> None:
        self._trace, self._lane, self._name, self._step, self._rank = trace, lane, name, step, rank

    def __enter__(self) -> None:
        self._begin = self._trace.clock()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        trace = self._trace
        trace.add(Span(self._lane, self._name, self._step, self._rank, self._begin, trace.clock()))


class Trace:
    """The spans of one replica for the steps [first, last) of training; records nothing outside of them.

    Its threads may use it side by side: nothing but single operations on a list and a dict is shared.
    """

    def __init__(self, first: int = 0, last: int = 0, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock = clock
        self.first, self.last = first, last
        self.dropped = 0
        self._spans: list[Span] = []
        self._begun: dict[tuple[str, BatchId | int], int] = {}

    def covers(self, what: BatchId | int) -> bool:
        """Whether a step of training, or that of a batch, is traced."""
        if isinstance(what, BatchId):
            return what.split == TRAIN and self.first <= what.step < self.last
        return self.first <= what < self.last

    def span(self, lane: str, name: str, what: BatchId | int) -> AbstractContextManager[None]:
        """Record how long the block takes that the thread `lane` works at a batch, or step of training, in."""
        if not self.covers(what):
            return _NOTHING
        return _Doing(self, lane, name, *_step_and_rank(what))

    def begin(self, name: str, what: BatchId | int) -> None:
        """Begin to wait for something about a batch or step, unless it is being waited for already."""
        if self.covers(what):
            self._begun.setdefault((name, what), self.clock())

    def end(self, name: str, what: BatchId | int, lane: str = "", **figures: int) -> None:
        """It has come; does nothing if nobody waits for it. With a `lane`, that thread did nothing else meanwhile."""
        if self._begun and (begin := self._begun.pop((name, what), None)) is not None:
            self.add(Span(lane, name, *_step_and_rank(what), begin, self.clock(), figures))

    def add(self, span: Span) -> None:
        """Keep a span while there is room."""
        if len(self._spans) < SPANS_LIMIT:
            self._spans.append(span)
        else:
            self.dropped += 1

    def write(self, run_dir: Path, replica: str) -> None:
        """Write the part of a replica into the run directory, if anything was to be traced."""
        if self.last <= self.first:
            return
        waiting = [Span("", name, *_step_and_rank(what), begin, None) for (name, what), begin in self._begun.items()]
        behind = time.time_ns() - time.monotonic_ns()
        part = Part(replica, _boot(), behind, self.dropped, self._spans + waiting)
        folder = run_dir / PARTS
        folder.mkdir(exist_ok=True)
        (folder / f"{replica}.json").write_bytes(msgspec.json.encode(part))


def _step_and_rank(what: BatchId | int) -> tuple[int, int | None]:
    return (what.step, what.rank) if isinstance(what, BatchId) else (what, None)


def _boot() -> str:
    """Return what tells this boot of this machine from all others."""
    return _BOOT.read_text().strip() if _BOOT.exists() else socket.gethostname()
