"""Saves by the schedule, on requests and on signals: published once, when complete, and answered with their place."""

from typing import Any

import pytest

from persia_cli.control.position import TRAIN
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.state import (
    BeginCheckpoint,
    PublishCheckpoint,
    PublishScores,
    Reply,
    Start,
)
from persia_cli.store.checkpoints.saved import SavedFile, encode_files
from persia_cli.wire.job_messages import (
    CutShort,
    Death,
    Done,
    Halt,
    Halted,
    Instruction,
    Next,
    Saved,
    SavedNow,
    SaveModel,
    SaveNow,
    TrainSteps,
    Unreadable,
)
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer
from tests.support.coordination import Coordination, event
from tests.support.runs import make_run

COMMAND = Peer(b"command", 1)
RANK, SERVER = "nn-worker-0", "embedding-server-0"
ALL = (SERVER, RANK, "embedding-worker-0", "data-loader-0")
FILES = {name: (SavedFile("folder", name, 1, "0" * 32),) for name in (SERVER, RANK)}
SAVED = {"event": "saved", "path": "run/checkpoints/step-4", "step": 4}


class SavingJob(Coordination):
    """A job of one replica of each role that trains four steps."""

    def __init__(self, saved: str = "", evaluations: int = 3, **checkpoint: Any) -> None:
        run = make_run(checkpoint=checkpoint, recovery={"max_restarts": 3})
        super().__init__(run, Job("train", "run", None, 128, 32 * evaluations, 4, evaluations), saved=saved)

    def done(self, name: str = RANK) -> None:
        self.send(self.peer(name), Done(self.sender(name), self.state.phases.first_number))

    def written(self, name: str, step: int, failure: str = "") -> None:
        files = () if failure else FILES[name]
        self.send(self.peer(name), Saved(self.sender(name), step, encode_files(files), failure))

    def begin_save(self, step: int) -> BeginCheckpoint:
        """The disk is ready for the save that has begun."""
        task = self.started[-1]
        assert isinstance(task, BeginCheckpoint)
        assert task.phase.last == step
        self.end_task(task, SaveModel("folder", step))
        return task

    def save(self, step: int, *results: dict[str, Any]) -> PublishCheckpoint:
        """Every participant writes its part and ends the phase; then the disk has these results."""
        self.begin_save(step)
        for name in (SERVER, RANK):
            self.done(name)
            self.written(name, step)
        task = self.started[-1]
        assert isinstance(task, PublishCheckpoint)
        self.end_task(task, results)
        return task

    @property
    def phase(self) -> str:
        assert self.state.phases.current is not None
        return self.state.phases.current.kind


def test_a_checkpoint_is_published_when_all_parts_are_written() -> None:
    job = SavingJob(every_steps=2, at_end=False)
    job.begin()
    assert job.started == []
    job.done()
    assert (job.phase, job.started[-1].doing) == ("saving", "starting the checkpoint of step 2")
    asked = job.peer(RANK)
    assert job.send(asked, Next(job.sender(RANK), 1)) == [], "the folder is not ready"
    assert job.end_task(job.started[-1], SaveModel("folder", 2)) == [
        event(event="phase", phase="saving", step=2),
        Reply(asked, Instruction(2, SaveModel("folder", 2))),
    ]
    job.done(RANK)
    job.done(SERVER)
    assert job.phase == "training", "files are written meanwhile"
    job.written(RANK, 2)
    job.written(RANK, 2)
    job.written(SERVER, 1)
    assert not any(isinstance(each, PublishCheckpoint) for each in job.started)
    peer = job.peer(SERVER)
    task = PublishCheckpoint(2, FILES[SERVER] + FILES[RANK], "")
    assert job.send(peer, Saved(job.sender(SERVER), 2, encode_files(FILES[SERVER]))) == [
        Reply(peer, Ack()),
        Start(task),
    ]
    assert job.end_task(task, [SAVED | {"step": 2}]) == [event(**SAVED | {"step": 2})]
    job.written(SERVER, 2)
    assert job.started[-1] == task


def test_a_death_while_files_are_written_costs_the_save_which_is_tried_again_at_once() -> None:
    job = SavingJob(every_steps=2, at_end=False)
    job.begin()
    job.done()
    job.begin_save(2)
    job.done(RANK)
    job.done(SERVER)
    job.written(RANK, 2)
    job.send(job.peer("supervisor"), Death("embedding-server", 0, job.member(SERVER).process, -9))
    task = job.started[-1]
    assert isinstance(task, PublishCheckpoint)
    assert task.failure == "embedding-server-0 was killed by SIGKILL (out of memory?) while it wrote its rows"
    failed = {"event": "save_failed", "step": 2, "given_up": 1, "text": task.failure}
    assert job.end_task(task, [failed])[0] == event(**failed, retry_s=0.0)
    assert job.state.requests.save == "minutes"


def test_failed_saves_are_tried_again_after_seconds_and_the_last_one_for_an_hour() -> None:
    job = SavingJob(evaluations=0)
    job.begin()
    job.done()
    failed: dict[str, Any] = {"event": "save_failed", "step": 4, "text": "the disk is full"}
    pauses = list[float]()
    while True:
        job.save(4, failed)
        pauses.append([each["retry_s"] for each in job.events if each["event"] == "save_failed"][-1])
        for name in ALL:
            job.member(name).last_seen_s = job.now + pauses[-1]
        assert job.wait(pauses[-1] - 0.1) == []
        job.wait(0.2)
        if job.state.failure is not None:
            break
    assert pauses[:6] == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert 3540 <= sum(pauses) <= 3720
    assert str(job.state.failure) == "the model of step 4 was not saved: the disk is full"


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        (SAVED, SavedNow("run/checkpoints/step-4")),
        (
            {"event": "save_failed", "step": 4, "text": "the disk is full"},
            SavedNow("", "the checkpoint could not be written: the disk is full"),
        ),
    ],
)
def test_a_request_while_a_saved_step_is_evaluated_is_answered_by_that_checkpoint(
    result: dict[str, Any], answer: SavedNow
) -> None:
    job = SavingJob()
    job.begin()
    job.done()
    job.save(4, result)
    assert job.phase == "evaluating"
    job.send(COMMAND, SaveNow())
    job.done()
    assert job.phase == "saving", "only the evaluation is new"
    job.end_task(job.started[-1], None if result is SAVED else result)
    assert job.to(COMMAND) == [answer]


def test_a_checkpoint_that_cannot_be_recorded_as_the_best_is_saved_and_recorded_again() -> None:
    job = SavingJob(evaluations=0)
    job.begin()
    failed = {"event": "save_failed", "step": 4, "text": "cannot write best.json"}
    job.send(COMMAND, SaveNow())
    job.send(job.peer(RANK), Halted(job.sender(RANK), 2, 4))
    job.done()
    job.save(4, SAVED, failed)
    assert job.to(COMMAND) == [SavedNow("run/checkpoints/step-4")]
    for name in ALL:
        job.member(name).last_seen_s = job.now + 6.0
    job.wait(6.0)
    assert job.phase == "saving"
    job.end_task(job.started[-1], None)
    assert job.phase == "done"


@pytest.mark.parametrize(
    ("saved", "answer"), [("", SavedNow("", "nothing is trained yet")), ("run/step-8", SavedNow("run/step-8"))]
)
def test_a_request_before_training_is_answered_by_the_checkpoint_that_a_run_resumes(
    saved: str, answer: SavedNow
) -> None:
    assert SavingJob(saved).send(COMMAND, SaveNow()) == [Reply(COMMAND, answer)]


def test_a_request_to_a_job_that_ends_is_answered_at_once() -> None:
    job = SavingJob()
    job.begin()
    asked = job.peer(RANK)
    job.send(asked, Next(job.sender(RANK), 1))
    job.end("a replica has failed")
    assert job.send(COMMAND, SaveNow()) == [Reply(COMMAND, SavedNow("", "the job ends"))]
    assert len(job.to(asked)) == 1, "no instruction follows the one to stop"


def test_a_request_cuts_training_short_at_the_step_that_all_ranks_agree_on() -> None:
    job = SavingJob()
    job.begin()
    asked = job.peer(RANK)
    assert job.send(asked, Next(job.sender(RANK), 0)) == [Reply(asked, Instruction(1, TrainSteps(0, 4)))]
    asked = job.peer(RANK)
    job.send(asked, Next(job.sender(RANK), 1))
    assert job.send(COMMAND, SaveNow()) == [Reply(asked, Instruction(2, Halt(TRAIN)))]
    asked, held = job.peer(RANK), job.peer(RANK)
    job.send(asked, Next(job.sender(RANK), 2))
    cut = Instruction(3, CutShort(TRAIN, 3))
    assert job.send(held, Halted(job.sender(RANK), 2, 3)) == [Reply(held, Ack()), Reply(asked, cut)]
    job.done()
    assert job.save(3, SAVED | {"step": 3}).step == 3
    assert job.to(COMMAND) == [SavedNow("run/checkpoints/step-4")]
    assert job.phase == "training"


def test_a_signal_saves_and_ends_the_job() -> None:
    job = SavingJob()
    job.begin()
    assert job.signal("SIGTERM") == [
        event(event="ending", signal="SIGTERM", replica="coordinator-0", grace_s=job.state.run.checkpoint.grace_s)
    ]
    job.send(job.peer(RANK), Halted(job.sender(RANK), 2, 2))
    job.done()
    task = job.save(2, SAVED | {"step": 2})
    assert task.failure == ""
    assert (job.phase, job.state.is_resumable) == ("done", True)
    assert job.events[-1] == {
        "event": "phase",
        "phase": "stopped",
        "step": 2,
        "signal": "SIGTERM",
        "replica": "coordinator-0",
    }


def test_a_signal_ends_a_job_that_cannot_save_in_time() -> None:
    job = SavingJob(grace_s=7)
    job.begin()
    job.signal("SIGTERM")
    job.wait(7.0)
    assert job.state.stop_reason is None
    job.wait(0.1)
    assert job.state.stop_reason == "the model was not saved within 7 s (checkpoint.grace_s)"


def test_a_signal_does_not_discard_a_prediction_that_is_being_published() -> None:
    job = Coordination(make_run(), Job("predict", "run", None, 0, 96, 0, 3))
    job.begin()
    assert job.send(job.peer(RANK), Done(job.sender(RANK), 1))[1:] == [Start(PublishScores())]
    job.signal("SIGTERM")
    assert (job.state.ending, job.state.stop_reason) == (None, None)
    scored = {"path": "scores.parquet", "rows": 96}
    assert job.end_task(PublishScores(), scored)[0] == event(event="scored", **scored)


def test_a_step_that_cannot_be_read_ends_training_before_it_with_a_save() -> None:
    job = SavingJob()
    job.begin()
    loader = "data-loader-0"
    job.send(job.peer(loader), Unreadable(job.sender(loader), TRAIN, 3, "a.parquet is damaged"))
    asked = job.peer(RANK)
    assert job.send(asked, Next(job.sender(RANK), 1)) == [Reply(asked, Instruction(2, CutShort(TRAIN, 3)))]
    job.done()
    job.save(3, SAVED | {"step": 3})
    assert str(job.state.failure) == (
        "data-loader-0: a.parquet is damaged; the model of step 3 is in run/checkpoints/step-4: "
        "persia resume run goes on from there"
    )
