"""The coordinator's edge carries out every effect, also after one that is impossible."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.coordinator import Coordinator
from persia_cli.roles.coordinator.state import Kill, ReplicaError, Reply, Write
from persia_cli.wire.job_messages import SavedNow
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import ProcessId
from persia_cli.wire.server import Peer
from persia_cli.wire.sockets import Context
from tests.support.runs import make_run


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with Context() as context:
        loop = Loop(context, "coordinator-0")
        job = Job("train", str(tmp_path), None, 128, 0, 4, 0)
        yield Coordinator(loop, f"inproc://{uuid.uuid4()}", make_run(), job)
        loop.close()


def test_an_answer_that_cannot_be_sent_does_not_prevent_the_effects_after_it(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    too_long = Reply(Peer(b"command", 1), SavedNow("x" * SavedNow.LIMIT.header))
    coordinator._carry_out([too_long, Write(EVENTS, {"event": "note", "text": "later"})])
    coordinator.stop = True
    coordinator.run()
    texts = [event.get("text") for event in read_journal(tmp_path / EVENTS)]
    assert "later" in texts


def test_a_process_that_cannot_be_killed_fails_the_job_at_once(coordinator: Coordinator) -> None:
    coordinator._carry_out([Kill(ProcessId(7, 5, "elsewhere"), or_else="nn-worker-0 is silent")])
    with pytest.raises(ReplicaError, match="nn-worker-0 is silent"):
        coordinator.run()
