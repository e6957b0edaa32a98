"""Replicas started one by one with `--supervise`, each below a separate parent, outlive what a launcher's do."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from persia_cli.engines.job import JobResult, result_of
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.conftest import poll_for
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import losses
from tests.support.launched import pids_of
from tests.support.one_by_one import by_hand, end, start_again
from tests.support.small import STEPS, WORDS, figures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SMALL = [*WORDS, "cluster=local", "train.log_every_steps=5"]
NAMES = ["data-loader-0", "embedding-worker-0", "embedding-server-0"]
LIMIT_S = 120.0


def wait_for_step(run_dir: Path, step: int) -> None:
    def reached() -> bool:
        lines = read_journal(run_dir / METRICS)
        return bool(lines and lines[-1]["step"] >= step)

    poll_for(reached, LIMIT_S, f"step {step}")


@pytest.fixture(scope="module")
def undisturbed(trained: Callable[..., JobResult]) -> JobResult:
    return trained(*SMALL)


def test_killed_processes_get_others_and_the_result_has_the_same_bits(undisturbed: JobResult, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with by_hand(SMALL, run_dir, supervise=True) as started:
        wait_for_step(run_dir, STEPS // 4)
        for name in NAMES:
            os.kill(pids_of(run_dir)[name], signal.SIGKILL)
        codes = end(started)
    assert set(codes.values()) == {0}
    result = result_of(run_dir)
    assert sorted(e["replica"] for e in result.events if e["event"] == "recovered") == sorted(NAMES)
    assert (losses(result), figures(result)) == (losses(undisturbed), figures(undisturbed))
    assert_same_model(newest_checkpoint(run_dir / CHECKPOINTS), newest_checkpoint(undisturbed.run_dir / CHECKPOINTS))


def test_supervisors_that_are_killed_and_started_again_go_on_with_the_job(
    undisturbed: JobResult, tmp_path: Path
) -> None:
    run_dir, killed = tmp_path / "run", ["data-loader-0", "embedding-worker-0"]
    with by_hand(SMALL, run_dir, supervise=True) as started:
        for step, name in zip((STEPS // 4, STEPS // 2), killed, strict=True):
            wait_for_step(run_dir, step)
            started[name].kill()
            start_again(started, name, run_dir)
        codes = end(started)
    assert set(codes.values()) == {0}
    result = result_of(run_dir)
    assert sorted(e["replica"] for e in result.events if e["event"] == "recovered") == killed
    assert (losses(result), figures(result)) == (losses(undisturbed), figures(undisturbed))
