"""Traces: the work and the waits of each replica in a window of steps, in nanoseconds of CLOCK_MONOTONIC."""

import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from types import TracebackType

import msgspec

from persia_cli.control.position import TRAIN
from persia_cli.wire.message import BatchId

SPANS_LIMIT = 50_000
"""Maximum number of spans of a process; later ones are only counted."""
LOOP = "loop"
"""Name of the thread of a role's poll loop in traces."""

_BOOT, _TIMES = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/time")
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
        self.dropped = self._added = 0
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
        if self._added < SPANS_LIMIT:
            self._added += 1
            self._spans.append(span)
        else:
            self.dropped += 1

    @property
    def is_wanted(self) -> bool:
        """True if any steps are traced."""
        return self.first < self.last

    def take(self, most: int) -> list[Span]:
        """Remove and return the oldest spans, at most this number."""
        taken = self._spans[:most]
        del self._spans[: len(taken)]
        return taken

    def end_waits(self) -> None:
        """Record the present waits as spans without an end; no more spans follow."""
        for (name, what), begin in self._begun.copy().items():
            self.add(Span("", name, *_step_and_rank(what), begin, None))
        self._begun = {}


def _step_and_rank(what: BatchId | int) -> tuple[int, int | None]:
    return (what.step, what.rank) if isinstance(what, BatchId) else (what, None)


@cache
def clock_name() -> str:
    """Return an identifier of this process's clock: of the machine's boot, and of a time namespace."""
    boot = _BOOT.read_text().strip() if _BOOT.exists() else socket.gethostname()
    return f"{boot} {_TIMES.readlink()}" if _TIMES.is_symlink() else boot
