"""Traces: what is recorded, what it costs when nothing is, and the file that replicas' parts become."""

import json
import timeit
from pathlib import Path

import msgspec
import pytest

from persia_cli.control.position import EVAL, TRAIN
from persia_cli.observe import trace as tracing
from persia_cli.observe.trace import ReplicaTrace, Span, Trace, chrome_events, join_trace, read_parts
from persia_cli.wire.parts import BatchId
from tests.support.traced import Seen, read_trace

DAY = 1_700_000_000_000_000_000


class Clock:
    """A clock that goes on by a microsecond at each look."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1000
        return self.now


def batch(step: int, rank: int = 0, split: int = TRAIN) -> BatchId:
    return BatchId(0, split, step, rank)


def spans_of(trace: Trace, folder: Path) -> list[Span]:
    trace.write(folder, "nn-worker-0")
    (part,) = read_parts(folder)
    return part.spans


def test_threads_and_waits_are_recorded(tmp_path: Path) -> None:
    trace = Trace(0, 10, Clock())
    trace.begin("pull", batch(3, rank=1))
    with trace.span("training", "forward", 2):
        pass
    trace.end("pull", batch(3, rank=1), staleness=2)
    trace.begin("push", batch(2))
    assert spans_of(trace, tmp_path) == [
        Span("training", "forward", 2, None, 2000, 3000),
        Span("", "pull", 3, 1, 1000, 4000, {"staleness": 2}),
        Span("", "push", 2, 0, 5000, None),
    ]


def test_a_wait_begins_once_and_ends_once(tmp_path: Path) -> None:
    trace = Trace(0, 10, Clock())
    trace.end("pull", batch(1))
    trace.begin("pull", batch(1))
    trace.begin("pull", batch(1))
    trace.end("pull", batch(1))
    trace.end("pull", batch(1))
    assert spans_of(trace, tmp_path) == [Span("", "pull", 1, 0, 1000, 3000)]


@pytest.mark.parametrize("what", [1, 4, -1, batch(1), batch(4), batch(2, split=EVAL)])
def test_other_steps_leave_nothing(what: int | BatchId, tmp_path: Path) -> None:
    trace = Trace(2, 4, Clock())
    with trace.span("training", "forward", what):
        trace.begin("pull", what)
    trace.end("pull", what)
    assert spans_of(trace, tmp_path) == []


def test_a_failure_within_a_span_is_recorded_and_goes_on(tmp_path: Path) -> None:
    trace = Trace(0, 1, Clock())
    with pytest.raises(ValueError, match="no"), trace.span("training", "forward", 0):
        raise ValueError("no")
    assert len(spans_of(trace, tmp_path)) == 1


def test_what_does_not_fit_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "SPANS_LIMIT", 5)
    trace = Trace(0, 100)
    for step in range(8):
        with trace.span("training", "forward", step):
            pass
    assert [span.step for span in spans_of(trace, tmp_path)] == [0, 1, 2, 3, 4]
    assert join_trace(tmp_path, ["nn-worker-0"], tmp_path / "trace.json")[:2] == (5, 3)


def test_without_a_window_nothing_is_written_and_little_time_is_lost(tmp_path: Path) -> None:
    trace = Trace()

    def step() -> None:
        with trace.span("training", "forward", 7):
            trace.begin("pull", 8)
        trace.end("pull", 8)

    assert min(timeit.repeat(step, number=1000, repeat=5)) / 1000 < 20e-6
    trace.write(tmp_path, "nn-worker-0")
    assert list(tmp_path.iterdir()) == []


def part(replica: str, *spans: Span, boot: str = "here", behind: int = DAY) -> ReplicaTrace:
    return ReplicaTrace(replica, boot, behind, 0, list(spans))


def leave(folder: Path, *parts: ReplicaTrace) -> None:
    (folder / tracing.PARTS).mkdir()
    for each in parts:
        (folder / tracing.PARTS / f"{each.replica}.json").write_bytes(msgspec.json.encode(each))


def test_parts_of_one_machine_are_joined_on_its_clock(tmp_path: Path) -> None:
    server = part("embedding-server-0", Span("loop", "look-up", 1, 0, 6_000, 7_500), behind=DAY + 5_000_000)
    worker = part(
        "nn-worker-0", Span("", "pull", 1, 0, 5_000, 9_000), Span("training", "forward", 0, None, 5_500, 8_000)
    )
    leave(tmp_path, server, worker)
    path = tmp_path / "trace.json"
    joined = join_trace(tmp_path, ["embedding-server-0", "data-loader-0", "nn-worker-0"], path)
    assert joined == (3, 0, ["data-loader-0"])
    assert read_trace(path) == [
        Seen("nn-worker-0", "", "pull", 1, 0, 0.0, 4.0, True, {"step": 1, "rank": 0}),
        Seen("nn-worker-0", "training", "forward", 0, None, 0.5, 3.0, False, {"step": 0}),
        Seen("embedding-server-0", "loop", "look-up", 1, 0, 1.0, 2.5, False, {"step": 1, "rank": 0}),
    ]
    assert json.loads(path.read_text())["otherData"] == {"clock": "CLOCK_MONOTONIC"}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["trace.json"]


def test_another_machine_is_set_by_the_clock_of_the_day() -> None:
    here = part("embedding-server-0", Span("loop", "update", 1, 0, 2_000, 4_000))
    there = part(
        "nn-worker-0", Span("loop", "update", 1, 0, 9_001_000, 9_003_000), boot="there", behind=DAY - 9_000_000
    )
    events = chrome_events([here, there], ["embedding-server-0", "nn-worker-0"])
    assert {event["pid"]: event["ts"] for event in events if event["ph"] == "X"} == {1: 1.0, 2: 0.0}


def test_what_was_waited_for_at_the_end_lasts_to_the_end() -> None:
    alone = part("nn-worker-0", Span("", "pull", 5, 0, 1_000, None), Span("training", "forward", 3, None, 2_000, 8_000))
    begin, end = (event for event in chrome_events([alone], ["nn-worker-0"]) if event["name"] == "pull")
    assert (begin["ts"], end["ts"], end["args"]) == (0.0, 7.0, {"step": 5, "rank": 0, "unfinished": True})


def test_a_part_that_is_cut_off_is_passed_over_and_none_at_all_leave_no_file(tmp_path: Path) -> None:
    leave(tmp_path, part("nn-worker-0"))
    (tmp_path / tracing.PARTS / "data-loader-0.json").write_text('{"replica": "data')
    joined = join_trace(tmp_path, ["data-loader-0", "nn-worker-0"], tmp_path / "trace.json")
    assert joined == (0, 0, ["data-loader-0", "nn-worker-0"])
    assert list(tmp_path.iterdir()) == []
