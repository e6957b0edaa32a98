"""Cuts for the publisher: when they are due, since which step, and when the guard holds versions back."""

from typing import Any

from persia_cli.control.portions import PlannedPortion
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.cuts import CutSchedule
from persia_cli.roles.coordinator.following import Found
from persia_cli.roles.coordinator.state import BeginCheckpoint, FindPortion
from persia_cli.wire.job_messages import Halted, SaveModel, SaveNow
from tests.support.coordination import Coordination
from tests.support.runs import make_run
from tests.unit.roles.coordinator.test_saving import COMMAND, RANK, SERVER, SavingJob


class PublishingJob(SavingJob):
    """A job of four steps that makes a cut every second."""

    def __init__(self, dataset: dict[str, Any] | None = None, **publish: Any) -> None:
        run = make_run(
            checkpoint={"at_end": False, "every_minutes": None},
            publish={"to": "folder", "every_s": 1, **publish},
            **({} if dataset is None else {"dataset": dataset}),
        )
        Coordination.__init__(self, run, Job("train", "run", None, 128, 0, 4, 0))

    @property
    def cuts(self) -> CutSchedule:
        return self.machine._saves.cuts

    def halt(self, step: int) -> None:
        """The ranks stop at this step."""
        self.send(self.peer(RANK), Halted(self.sender(RANK), self.state.phases.number, step))
        self.done()

    def start_cut(self, step: int) -> int | None:
        """A cut begins at this step; return since which step, None if there is nothing to cut."""
        self.wait(2.0)
        self.halt(step)
        task = self.started[-1]
        assert isinstance(task, BeginCheckpoint)
        assert (task.phase.last, task.phase.trigger) == (step, "publish")
        since = task.since
        if since is None:
            self.end_task(task, None)
            return None
        self.end_task(task, SaveModel("folder", step, since=since))
        for name in (SERVER, RANK):
            self.done(name)
        return since

    def cut(self, step: int, failure: str = "") -> int | None:
        """A cut is made at this step, or fails; return as `start_cut`."""
        if (since := self.start_cut(step)) is None:
            return None
        for name in (SERVER, RANK):
            self.written(name, step, failure)
        result = {"event": "cut_failed", "text": failure} if failure else {"event": "cut", "since": since}
        self.end_task(self.started[-1], [{"step": step, **result}])
        assert self.phase == "training"
        return since


def test_a_cut_has_what_changed_since_the_one_before_and_all_after_a_failure() -> None:
    job = PublishingJob()
    job.begin()
    assert job.cut(1) == 0, "the first has all rows"
    assert job.cut(1) is None, "nothing is trained since"
    assert job.cut(2) == 1
    assert job.cut(3, failure="the disk is full") == 2
    assert "the whole model" in [each["text"] for each in job.events if each["event"] == "warning"][-1]
    assert job.cut(3) == 0
    assert [each["phase"] for each in job.events if each["event"] == "phase"] == ["training"], (
        "the journal has only the ends of cuts"
    )


def test_every_so_many_deltas_one_has_all_rows() -> None:
    job = PublishingJob(base_every=1)
    job.begin()
    assert [job.cut(step) for step in (1, 2, 3)] == [0, 1, 0]


def test_with_a_guard_a_version_is_of_a_step_whose_evaluation_is_within_bounds() -> None:
    job = PublishingJob(guard={"ne": 0.9, "calibration": 1.25})
    job.begin()
    assert job.cuts.since(1) is None, "nothing was evaluated"
    for line, is_held in (
        ({"ne": 0.9, "calibration": 1.0}, False), ({"ne": 0.91, "calibration": 1.0}, True),
        ({"ne": 0.5, "calibration": 0.79}, True), ({"ne": None, "calibration": 1.0}, True),
        ({"ne": 0.5, "calibration": 1.25}, False), ({"ne": float("nan"), "calibration": 1.0}, True),
    ):  # fmt: skip
        job.wait(2.0)
        assert not job.cuts.is_due(), "the clock requests nothing"
        job.state.requests.publish = False
        job.cuts.judge({"step": 1, **line})
        assert job.state.requests.publish != is_held
        assert job.cuts.since(2) is None
        assert job.cuts.since(1) == (None if is_held else 0)
        assert job.state.record.is_held == is_held
    job.wait(0.0)
    assert any("held back: at step 1, ne is nan" in each.get("text", "") for each in job.events)


def test_a_command_that_comes_while_a_cut_is_written_gets_its_checkpoint() -> None:
    job = PublishingJob()
    job.begin()
    job.start_cut(2)
    job.send(COMMAND, SaveNow())
    job.halt(3)
    assert job.to(COMMAND) == []
    for name in (SERVER, RANK):
        job.written(name, 2)
    job.end_task(job.started[-1], [{"step": 2, "event": "cut", "since": 0}])
    task = job.started[-1]
    assert isinstance(task, BeginCheckpoint)
    assert (task.phase.last, task.phase.trigger) == (3, "request")


def test_a_job_without_a_portion_cuts_what_the_publisher_was_too_slow_for_once() -> None:
    job = PublishingJob({"split": {"kind": "train"}, "follow": {"poll_s": 3600}})
    job.begin()
    look = job.started[-1]
    assert isinstance(look, FindPortion)
    job.end_task(look, Found(job.now, PlannedPortion(1, 0, 2, 0, 64, [], "", 0.0)))
    assert job.phase == "training"
    job.done()
    for answer in (None, SaveModel("folder", 2, since=0)):
        task = job.started[-1]
        assert isinstance(task, BeginCheckpoint)
        assert (task.phase.last, task.phase.trigger) == (2, "publish")
        job.end_task(task, answer)
        if answer is None:
            assert job.phase == "idle", "the publisher is behind"
            job.wait(2.0)
    for name in (SERVER, RANK):
        job.done(name)
        job.written(name, 2)
    job.end_task(job.started[-1], [{"step": 2, "event": "cut", "since": 0}])
    number = len(job.started)
    job.wait(2.0)
    assert (job.phase, job.started[number:]) == ("idle", [])


def test_the_last_step_has_a_cut() -> None:
    job = PublishingJob()
    job.begin()
    job.done()
    task = job.started[-1]
    assert isinstance(task, BeginCheckpoint)
    assert (task.phase.last, task.phase.trigger, task.since) == (4, "publish", 0)
