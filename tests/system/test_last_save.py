"""A death while the last checkpoint is written costs time, and neither the job nor the checkpoint."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from persia_cli.engines.job import JobResult, result_of
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder, finished_steps
from tests.conftest import poll_for
from tests.support.checkpoints import assert_same_model
from tests.support.held_files import HeldFiles
from tests.support.jobs import losses
from tests.support.launched import Launched, pids_of
from tests.support.small import STEPS, WORDS, figures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 120.0
SMALL = [*WORDS, "cluster=local", "train.log_every_steps=5", f"checkpoint.every_steps={STEPS // 2}"]
KEPT = [*SMALL, "cluster.embedding_servers=2"]


@pytest.fixture(scope="module")
def undisturbed(trained: Callable[..., JobResult]) -> JobResult:
    return trained(*SMALL, "cluster=embedded")


def disturbed(words: list[str], tmp_path: Path, victims: list[str], times: int = 1) -> JobResult:
    """The result of a job whose replicas were killed while the files of its last checkpoint were being written."""
    files = HeldFiles(tmp_path / "held")
    with Launched(words, tmp_path / "run", files.environment) as job:
        poll_for(
            lambda: finished_steps(job.run_dir / CHECKPOINTS) or job.process.poll() is not None, LIMIT_S, "a checkpoint"
        )
        files.hold()
        for number in range(1, times + 1):
            poll_for(lambda: files.is_waited_for or job.process.poll() is not None, LIMIT_S, "the last save")
            assert job.process.poll() is None, job.output
            for victim in victims:
                os.kill(pids_of(job.run_dir)[victim], signal.SIGKILL)
            files.hold()
            wanted = number * len(victims)
            poll_for(
                lambda wanted=wanted: len(recovered(job.run_dir)) >= wanted or job.process.poll() is not None,
                LIMIT_S,
                "a new process",
            )
            if number == times:
                files.let_go()
        code, _ = job.end(LIMIT_S)
        assert code == 0, job.output
    return result_of(job.run_dir)


def recovered(run_dir: Path) -> list[str]:
    return [event["replica"] for event in read_journal(run_dir / EVENTS) if event["event"] == "recovered"]


def assert_same(result: JobResult, undisturbed: JobResult) -> None:
    assert (losses(result), figures(result)) == (losses(undisturbed), figures(undisturbed))
    folders = [checkpoint_folder(each.run_dir / CHECKPOINTS, STEPS) for each in (result, undisturbed)]
    assert_same_model(*folders)
    assert [path.name for path in (result.run_dir / CHECKPOINTS).glob("*.partial")] == []


def test_it_is_saved_again(undisturbed: JobResult, tmp_path: Path) -> None:
    result = disturbed(KEPT, tmp_path, ["embedding-server-1"])
    [failed] = [event for event in result.events if event["event"] == "save_failed"]
    assert (failed["step"], failed["given_up"]) == (STEPS, 1)
    assert failed["text"].startswith("embedding-server-1 was killed by SIGKILL")
    assert [event["step"] for event in result.events if event["event"] == "saved"] == [STEPS // 2, STEPS]
    assert_same(result, undisturbed)


@pytest.mark.parametrize(
    ("victims", "times"),
    [
        (["embedding-server-0", "embedding-server-1"], 1),
        (["embedding-server-0"], 2),
    ],
)
def test_any_role_dies_any_number_of_times(
    undisturbed: JobResult, tmp_path: Path, victims: list[str], times: int
) -> None:
    result = disturbed(KEPT, tmp_path, victims, times)
    assert_same(result, undisturbed)
    assert [event["step"] for event in result.events if event["event"] == "saved"][-1] == STEPS
