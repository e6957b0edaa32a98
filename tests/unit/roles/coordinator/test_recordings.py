"""Portions of a trace that the coordinator's disk refuses."""

import time
from pathlib import Path
from typing import Any, cast

import msgspec

from persia_cli.observe.journal import Journal, read_journal
from persia_cli.observe.record import RunRecord
from persia_cli.observe.recordings import TracePortion, join_recordings, recording_of
from persia_cli.observe.trace import Span, own_clock
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.recordings import Recordings
from persia_cli.wire.job_messages import Recorded
from persia_cli.wire.message import ProcessId, Sender
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer
from tests.support.coordination import Coordination
from tests.support.full_disk import leave_free, small_disk
from tests.support.runs import make_run

RANK, PEER = "nn-worker-0", Peer(b"rank", 1)
PAGE = 4096


def portion(number: int, spans: int, is_last: bool = False) -> Recorded:
    recorded = [Span("training", "forward", step, None, step * 10, step * 10 + 5) for step in range(spans)]
    whole = TracePortion(RANK, "a", number, own_clock(), 0, 0, 0, is_last, recorded)
    return Recorded(Sender("nn-worker", 0, 1), msgspec.json.encode(whole))


def await_disk(job: Coordination) -> None:
    deadline = time.monotonic() + 10
    while not job.context.disk.is_idle:
        assert time.monotonic() < deadline
        job.context.disk.tick()
        time.sleep(0.001)


def test_spans_that_a_full_disk_refuses_are_counted_and_reported(tmp_path: Path) -> None:
    events = Journal(tmp_path / "events.jsonl")
    record = RunRecord(tmp_path, events, make_run(), cast(Any, None), 0, 0)
    with small_disk(16 * PAGE) as disk:
        job = Coordination(
            make_run(), Job("train", str(disk), None, 100, 0, 10, 0, trace_first=0, trace_last=10), record
        )
        job.context.membership.join("nn-worker", 0, ProcessId(7), "here", "", 0.0)
        recordings = Recordings(job.context)
        recordings.on_recorded(PEER, portion(1, 3))
        await_disk(job)
        filler = leave_free(disk, PAGE)
        before = recording_of(disk, RANK).stat().st_size
        recordings.on_recorded(PEER, portion(2, 500))
        await_disk(job)
        assert recording_of(disk, RANK).stat().st_size == before, "half a line would spoil the next"
        filler.unlink()
        recordings.on_recorded(PEER, portion(3, 4, is_last=True))
        job.close()
        joined = join_recordings(disk, [RANK], tmp_path / "trace.json")
    assert job.replies.to(PEER) == [Ack()] * 3
    assert joined == (7, 0, [], [RANK])
    record.write_roles()
    record.close()
    events.close()
    [warning] = [event["text"] for event in read_journal(tmp_path / "events.jsonl") if event["event"] == "warning"]
    said = "the trace lacks 500 spans of nn-worker-0, which could not be written: No space left on device"
    assert warning == said
