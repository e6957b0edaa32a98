"""Roles that a person starts one by one: if any is asked to stop, all end within seconds, and the cause is recorded."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from persia_cli.engines.job import COORDINATOR_ADDRESS, recorded_failure
from persia_cli.observe.history import RunOutcome, read_history
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from tests.conftest import poll_for
from tests.support.launched import ENDLESS
from tests.support.one_by_one import END_S, Started, by_hand, end
from tests.support.threads import free_address

SILENCE_S = 600
INTERRUPTED = 128 + signal.SIGINT


WORDS = [*ENDLESS, f"cluster.silence_timeout_s={SILENCE_S}"]


def wait_for_training(run_dir: Path) -> None:
    poll_for(lambda: read_journal(run_dir / METRICS), 90.0, "steps trained")


def test_a_coordinator_that_is_asked_to_stop_ends_all_roles(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with by_hand(WORDS, run_dir) as started:
        wait_for_training(run_dir)
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
    with by_hand(WORDS, run_dir) as started:
        wait_for_training(run_dir)
        started[name].send_signal(signal.SIGINT)
        codes = end(started)
    assert (codes.pop(name), codes.pop("coordinator-0")) == (INTERRUPTED, 1)
    assert set(codes.values()) == {0}
    assert str(recorded_failure(run_dir)) == f"{name} was stopped (SIGINT)"
    assert read_history(run_dir).outcome(time.time()) == RunOutcome("failed", f"{name} was stopped (SIGINT)")


def second_coordinator(run_dir: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "persia_cli", "launch-role", "coordinator", "--index", "0"]
    command += ["--coordinator", free_address(), "--run-dir", str(run_dir)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_a_second_coordinator_is_refused_even_while_the_first_is_stopped(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with by_hand(WORDS, run_dir) as started:
        wait_for_training(run_dir)
        address = (run_dir / COORDINATOR_ADDRESS).read_text()
        first = started["coordinator-0"]
        first.send_signal(signal.SIGSTOP)
        others = [second_coordinator(run_dir) for _ in range(2)]
        try:
            for other in others:
                error = other.communicate(timeout=END_S)[1]
                assert other.returncode == 2
                assert "is being written by another process" in error
        finally:
            for other in others:
                other.kill()
                other.wait()
        first.send_signal(signal.SIGCONT)
        assert (run_dir / COORDINATOR_ADDRESS).read_text() == address
        lines = len(read_journal(run_dir / METRICS))
        poll_for(lambda: len(read_journal(run_dir / METRICS)) > lines, END_S, "the first to go on")
        assert running_all(started)


def running_all(started: Started) -> bool:
    return all(process.poll() is None for process in started.values())
