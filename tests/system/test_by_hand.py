"""Roles that a person starts one by one: the job ends when one is asked to stop, and outlives deaths if supervised."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from persia_cli.engines.job import COORDINATOR_ADDRESS, JobResult, recorded_failure, result_of
from persia_cli.observe.history import RunOutcome, read_history
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.conftest import poll_for
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import losses
from tests.support.launched import ENDLESS, pids_of
from tests.support.one_by_one import END_S, by_hand, end, start_again
from tests.support.small import STEPS, WORDS, figures
from tests.support.threads import free_address

INTERRUPTED = 128 + signal.SIGINT
PATIENT = [*ENDLESS, "cluster.silence_timeout_s=600"]
SMALL = [*WORDS, "cluster=local", "train.log_every_steps=5"]
LIMIT_S = 120.0


def wait_for_step(run_dir: Path, step: int) -> None:
    def reached() -> bool:
        lines = read_journal(run_dir / METRICS)
        return bool(lines and lines[-1]["step"] >= step)

    poll_for(reached, LIMIT_S, f"step {step}")


def test_a_coordinator_that_is_asked_to_stop_ends_all_roles(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with by_hand(PATIENT, run_dir) as started:
        wait_for_step(run_dir, 1)
        started["coordinator-0"].send_signal(signal.SIGINT)
        codes = end(started)
    assert codes.pop("coordinator-0") == INTERRUPTED
    assert set(codes.values()) == {0}
    assert read_history(run_dir).outcome(time.time()) == RunOutcome("stopped")
    [stopped] = [event for event in read_journal(run_dir / EVENTS) if event.get("phase") == "stopped"]
    assert stopped["step"] > 0


@pytest.mark.slow
def test_a_role_that_is_asked_to_stop_ends_the_job_by_name(tmp_path: Path) -> None:
    name, run_dir = "embedding-server-0", tmp_path / "run"
    with by_hand(PATIENT, run_dir) as started:
        wait_for_step(run_dir, 1)
        started[name].send_signal(signal.SIGINT)
        codes = end(started)
    assert (codes.pop(name), codes.pop("coordinator-0")) == (INTERRUPTED, 1)
    assert set(codes.values()) == {0}
    assert str(recorded_failure(run_dir)) == f"{name} was stopped (SIGINT)"
    assert read_history(run_dir).outcome(time.time()) == RunOutcome("failed", f"{name} was stopped (SIGINT)")


@pytest.mark.slow
def test_a_second_coordinator_is_refused_even_while_the_first_is_stopped(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with by_hand(PATIENT, run_dir) as started:
        wait_for_step(run_dir, 1)
        address = (run_dir / COORDINATOR_ADDRESS).read_text()
        started["coordinator-0"].send_signal(signal.SIGSTOP)
        command = [sys.executable, "-m", "persia_cli", "launch-role", "coordinator", "--index", "0"]
        command += ["--coordinator", free_address(), "--run-dir", str(run_dir)]
        other = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=END_S)
        assert other.returncode == 2
        assert "is being written by another process" in other.stderr
        started["coordinator-0"].send_signal(signal.SIGCONT)
        assert (run_dir / COORDINATOR_ADDRESS).read_text() == address
        lines = len(read_journal(run_dir / METRICS))
        poll_for(lambda: len(read_journal(run_dir / METRICS)) > lines, END_S, "the first to go on")
        assert all(process.poll() is None for process in started.values())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_supervised_processes_and_supervisors_that_are_killed_are_replaced(
    trained: Callable[..., JobResult], tmp_path: Path
) -> None:
    run_dir, undisturbed = tmp_path / "run", trained(*SMALL)
    replaced = ["data-loader-0", "embedding-worker-0", "embedding-server-0"]
    with by_hand(SMALL, run_dir, supervise=True) as started:
        wait_for_step(run_dir, STEPS // 4)
        for name in replaced:
            os.kill(pids_of(run_dir)[name], signal.SIGKILL)
        wait_for_step(run_dir, STEPS // 2)
        started["data-loader-0"].kill()
        start_again(started, "data-loader-0", run_dir)
        codes = end(started)
    assert set(codes.values()) == {0}
    result = result_of(run_dir)
    recovered = [event["replica"] for event in result.events if event["event"] == "recovered"]
    assert sorted(recovered) == sorted([*replaced, "data-loader-0"])
    assert (losses(result), figures(result)) == (losses(undisturbed), figures(undisturbed))
    assert_same_model(newest_checkpoint(run_dir / CHECKPOINTS), newest_checkpoint(undisturbed.run_dir / CHECKPOINTS))
