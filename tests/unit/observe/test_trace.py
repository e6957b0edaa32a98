"""Traces: recorded spans."""

import itertools
from collections.abc import Callable

import pytest

from persia_cli.control.position import EVAL, TRAIN
from persia_cli.observe import trace as tracing
from persia_cli.observe.trace import Span, Trace
from persia_cli.wire.message import BatchId


def clock() -> Callable[[], int]:
    """A clock that advances by a microsecond at each reading."""
    return itertools.count(1000, 1000).__next__


def batch(step: int, rank: int = 0, split: int = TRAIN) -> BatchId:
    return BatchId(split, step, rank)


def spans_of(trace: Trace) -> list[Span]:
    trace.end_waits()
    return trace.take(1000)


def test_threads_and_waits_are_recorded() -> None:
    trace = Trace(0, 10, clock())
    trace.begin("pull", batch(3, rank=1))
    with trace.span("training", "forward", 2):
        pass
    trace.end("pull", batch(3, rank=1), staleness=2)
    trace.begin("push", batch(2))
    assert spans_of(trace) == [
        Span("training", "forward", 2, None, 2000, 3000),
        Span("", "pull", 3, 1, 1000, 4000, {"staleness": 2}),
        Span("", "push", 2, 0, 5000, None),
    ]


def test_a_wait_begins_once_and_ends_once() -> None:
    trace = Trace(0, 10, clock())
    trace.end("pull", batch(1))
    trace.begin("pull", batch(1))
    trace.begin("pull", batch(1))
    trace.end("pull", batch(1))
    trace.end("pull", batch(1))
    assert spans_of(trace) == [Span("", "pull", 1, 0, 1000, 3000)]


@pytest.mark.parametrize("what", [1, 4, -1, batch(1), batch(4), batch(2, split=EVAL)])
def test_other_steps_leave_nothing(what: int | BatchId) -> None:
    trace = Trace(2, 4, clock())
    with trace.span("training", "forward", what):
        trace.begin("pull", what)
    trace.end("pull", what)
    assert spans_of(trace) == []


def test_spans_that_do_not_fit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "SPANS_LIMIT", 5)
    trace = Trace(0, 100)
    for step in range(8):
        with trace.span("training", "forward", step):
            pass
    assert [span.step for span in spans_of(trace)] == [0, 1, 2, 3, 4]
    assert trace.dropped == 3
