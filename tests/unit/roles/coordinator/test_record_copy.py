"""The record of a run beside its checkpoints: with each of them, at the end, and never at the price of the job."""

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.errors import ConfigError, DiskError, RoleError
from persia_cli.observe.journal import EVENTS, METRICS, Journal, read_journal
from persia_cli.observe.record_elsewhere import ALIVE
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator import record_copy
from persia_cli.roles.coordinator.record_copy import copied_record, copy_figures
from persia_cli.store.writer import WRITER, OvertakenError, Writer, claim
from tests.conftest import poll_for
from tests.support.small import WORDS


class Recorded:
    """A run with a record that a test goes on writing."""

    def __init__(self, folder: Path, task: Any = "train", place: str = "saved", **changed: Any) -> None:
        self.run_dir, self.place = folder / "run", folder / place
        self.run_dir.mkdir()
        (self.run_dir / "config.yaml").write_text("name: small\n")
        words = [*WORDS, f"checkpoint.path={self.place}", "checkpoint.record=true"]
        self.run: Run = compose_run([*words, *(f"{key}={value}" for key, value in changed.items())])
        self.job = Job(task, str(self.run_dir), None, 100, 10, 4, 1)

    def write(self, **event: Any) -> None:
        for name in (METRICS, EVENTS):
            journal = Journal(self.run_dir / name)
            journal.write(**event)
            journal.close()

    def copied(self) -> list[Any]:
        return [event["event"] for event in read_journal(self.place / EVENTS)]


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setattr(record_copy, "LOOK_S", 0.01)
    return Recorded(tmp_path)


def test_it_is_copied_with_each_checkpoint_and_at_the_end(recorded: Recorded) -> None:
    with copied_record(recorded.run, recorded.job, lambda: False):
        recorded.write(event="began")
        poll_for(lambda: (recorded.place / "config.yaml").exists(), 10.0, "the first copy")
        recorded.write(event="saved", step=10)
        poll_for(lambda: recorded.copied() == ["began", "saved"], 10.0, "a copy")
        # The lines that a checkpoint counts are there before it is, and none of an older copy comes after them.
        assert not (recorded.place / METRICS).exists()
        copy_figures(recorded.run, recorded.job)
        assert (recorded.place / METRICS).read_bytes() == (recorded.run_dir / METRICS).read_bytes()
        recorded.write(event="phase", phase="done")
    assert recorded.copied() == ["began", "saved", "phase"]
    for path in recorded.run_dir.iterdir():
        assert (recorded.place / path.name).read_bytes() == path.read_bytes()
    assert [thread.name for thread in threading.enumerate() if thread.name == "record-copies"] == []


def test_a_job_that_fails_leaves_a_copy_with_its_failure(recorded: Recorded) -> None:
    recorded.write(event="phase", phase="failed")
    with pytest.raises(RoleError, match="lost"), copied_record(recorded.run, recorded.job, lambda: False):
        raise RoleError("a replica is lost")
    assert recorded.copied() == ["phase"]


def test_it_gives_signs_of_life_until_another_folder_has_taken_the_run_over(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_copy, "BEAT_S", 0.02)
    claim(str(recorded.place), recorded.run_dir, "here")
    alive = recorded.place / ALIVE
    with copied_record(recorded.run, recorded.job, lambda: False):
        poll_for(alive.exists, 10.0, "a sign of life")
        first = alive.read_bytes()
        poll_for(lambda: alive.read_bytes() != first, 10.0, "another one")
        other = Writer("/runs/b", "there", "id of b")
        (recorded.place / WRITER).write_bytes(msgspec.json.encode(other))
        with pytest.raises(OvertakenError, match="was taken over by /runs/b on there; there is no checkpoint in"):
            copy_figures(recorded.run, recorded.job)
        recorded.write(event="phase", phase="failed")
    assert not (recorded.place / EVENTS).exists()
    [*_, last] = read_journal(recorded.run_dir / EVENTS)
    assert "was not copied to" in last["text"]
    assert "was taken over by /runs/b on there" in last["text"]


def refusing(place: Any, content: bytes) -> None:
    raise DiskError(f"{place}: you may not write it")


@pytest.mark.parametrize(("waits", "why"), [(False, "you may not write it"), (True, "the store has not answered")])
def test_a_store_that_fails_costs_no_job_and_is_told_in_the_record(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, waits: bool, why: str
) -> None:
    asked, answers = threading.Event(), threading.Event()

    def put(place: Any, content: bytes) -> None:
        asked.set()
        if waits:
            answers.wait(30.0)
        refusing(place, content)

    monkeypatch.setattr(record_copy, "put", put)
    cluster = recorded.run.cluster.model_copy(update={"stop_timeout_s": 0.2})
    with copied_record(recorded.run.model_copy(update={"cluster": cluster}), recorded.job, lambda: True):
        recorded.write(event="saved", step=1)
        assert asked.wait(30.0)
    [warning] = [event for event in read_journal(recorded.run_dir / EVENTS) if event["event"] == "warning"]
    assert warning["text"].startswith(f"the end of the record was not copied to {recorded.place}: ")
    assert why in warning["text"]
    answers.set()
    poll_for(lambda: "record-copies" not in {each.name for each in threading.enumerate()}, 10.0, "its thread's end")


def test_a_record_that_is_there_is_not_copied_over_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_copy, "put", refusing)
    recorded = Recorded(tmp_path, place="run")
    with copied_record(recorded.run, recorded.job, lambda: False):
        recorded.write(event="saved", step=1)
    assert recorded.copied() == ["saved"]


def test_an_evaluation_of_the_model_leaves_the_copy_alone(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, task="evaluate")
    with copied_record(recorded.run, recorded.job, lambda: False):
        recorded.write(event="phase", phase="done")
    assert not recorded.place.exists()


def test_a_copy_needs_a_place() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.record copies the record to checkpoint\.path; give that too"):
        compose_run([*WORDS, "checkpoint.record=true"])
