"""A save is prepared and published on the disk worker, while messages are handled."""

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.checkpointing import Checkpointing
from persia_cli.roles.coordinator.save_requests import SaveRequests
from persia_cli.roles.coordinator.saving import PUBLISHER, Saving
from persia_cli.wire.job_messages import Saved, SaveModel
from persia_cli.wire.message import ProcessId, Sender
from persia_cli.wire.server import Peer
from tests.support.coordination import Coordination
from tests.support.runs import make_run

SERVER, PEER = Sender("embedding-server", 0, 1), Peer(b"server", 1)


class SavingJob(Coordination):
    """A job whose first phase saves; its checkpoints are ready when `ready` is set."""

    def __init__(self) -> None:
        run = make_run(checkpoint={"every_steps": 2})
        super().__init__(run, Job("train", "run", None, 96, 0, 4, 0), cast(Any, SimpleNamespace(state=None)))
        self.ready, self.files = threading.Event(), list[str]()
        self.begun: list[SaveModel | None] = []
        checkpointing = SimpleNamespace(
            reset=self.files.clear,
            has=lambda step: not self.ready.wait(10),
            begin=lambda phase, samples, state: SaveModel("draft", phase.last),
            add=lambda name, files, failure: self.files.append(name),
            conclude=lambda: {"event": "saved", "step": 2, "path": "step-2"},
            repeat=None,
            require_saved=None,
        )
        self.saving = Saving(self.context, cast(Checkpointing, checkpointing), SaveRequests(self.context))
        self.context.membership.join("embedding-server", 0, ProcessId(7), "here", "", 0.0)
        self.context.membership.join("nn-worker", 0, ProcessId(8), "here", "", 0.0)
        self.context.phases.advance()
        self.context.phases.waiting.clear()
        phase = self.context.phases.advance()
        assert phase.kind == "saving"
        self.saving.begin(phase, 64, self.begun.append)

    def await_disk(self) -> None:
        deadline = time.monotonic() + 10
        while not self.context.disk.is_idle:
            assert time.monotonic() < deadline
            self.context.disk.tick()
            time.sleep(0.001)


def test_files_count_only_once_the_folder_is_ready() -> None:
    job = SavingJob()
    job.saving.on_saved(PEER, Saved(SERVER, 2, (), "the folder of the save before is missing"))
    assert job.files == []
    assert "embedding-server-0" in job.context.phases.writing
    job.ready.set()
    job.await_disk()
    assert job.begun == [SaveModel("draft", 2)]
    job.saving.on_saved(PEER, Saved(SERVER, 2, ()))
    job.saving.on_saved(PEER, Saved(Sender("nn-worker", 0, 1), 2, ()))
    assert job.files == ["embedding-server-0", "nn-worker-0"]
    assert job.context.phases.writing == {PUBLISHER}, "the next save waits until this one is published"
    job.await_disk()
    assert job.context.phases.writing == set()
    assert [event["event"] for event in job.events.written] == ["saved"]
    job.close()


def test_a_signal_does_not_discard_a_prediction_that_is_being_published() -> None:
    job = Coordination(make_run(), Job("predict", "run", None, 0, 96, 0, 3))
    job.context.phases.advance()
    requests = SaveRequests(job.context)
    job.context.phases.waiting.clear()
    requests.end("SIGTERM", "coordinator-0")
    assert (job.context.ending, job.context.stop_reason) == (None, None)
