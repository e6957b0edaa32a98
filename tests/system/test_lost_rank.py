"""One of several ranks is stopped or killed while all of them train: the others end in time, and it is named."""

import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from persia_cli.engines.job import recorded_failure
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, finished_steps
from tests.conftest import poll_for
from tests.support.launched import ENDLESS, Launched, running
from tests.support.one_by_one import by_hand

SILENCE_S = 6
WORDS = [*ENDLESS, f"cluster.silence_timeout_s={SILENCE_S}", "cluster.stop_timeout_s=1", "cluster.embedding_workers=2"]
EVERY = 400
"""Steps between two checkpoints."""
LIMIT_S = SILENCE_S + 20.0
"""Silence, a second for torch to notice, and the end of the processes on a machine that is busy."""
STEPS_S = 60.0

pytestmark = pytest.mark.processes

TWO_OR_FOUR = [2, pytest.param(4, marks=pytest.mark.slow)]


def errors(job: Launched) -> list[str]:
    return [line for line in job.output.splitlines() if line.startswith("error:")]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", TWO_OR_FOUR)
@pytest.mark.parametrize("mode", ["hybrid", pytest.param("sync", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["nn-worker-1", pytest.param("embedding-worker-1", marks=pytest.mark.slow)])
def test_the_one_that_is_stuck_is_named(name: str, mode: str, ranks: int, tmp_path: Path) -> None:
    with Launched([*WORDS, f"mode={mode}", f"cluster.nn_workers={ranks}"], tmp_path / "run") as job:
        pids = job.wait_for_training()
        os.kill(pids[name], signal.SIGSTOP)
        code, _ = job.end(within_s=LIMIT_S)

        assert code == 1
        (error,) = errors(job)
        stuck = rf"error: {name} \(process {pids[name]} on \S+\) has shown no progress for {SILENCE_S} s"
        no_word = rf"error: \S+-\d+: {name} at \S+ has not answered for \S+ s"
        assert re.match(f"{stuck}|{no_word}", error)
        assert running(pids) == []


@pytest.mark.slow
@pytest.mark.parametrize("ranks", TWO_OR_FOUR)
def test_the_one_that_is_killed_is_named(ranks: int, tmp_path: Path) -> None:
    words = [*WORDS, f"cluster.nn_workers={ranks}", "recovery.max_restarts=0"]
    with Launched(words, tmp_path / "run") as job:
        pids = job.wait_for_training()
        os.kill(pids["nn-worker-1"], signal.SIGKILL)
        code, _ = job.end(within_s=LIMIT_S)

        assert code == 1
        assert errors(job)[0].startswith("error: nn-worker-1 was killed by SIGKILL")
        assert running(pids) == []


@pytest.mark.slow
def test_without_a_launcher_to_see_it_the_coordinator_finds_out(tmp_path: Path) -> None:
    """Ranks notice at once that a connection has closed, yet not whose process was killed."""
    run_dir = tmp_path / "run"
    metrics = run_dir / METRICS
    with by_hand([*WORDS, "cluster.nn_workers=2"], run_dir) as started:
        poll_for(lambda: metrics.exists() and metrics.stat().st_size, 90.0, "steps trained")
        started["nn-worker-1"].kill()
        poll_for(lambda: all(process.poll() is not None for process in started.values()), LIMIT_S, "the end of all")
    failure = recorded_failure(run_dir)
    assert failure is not None
    assert re.match(r"nn-worker-1 \(process|\S+-\d+: nn-worker-1 at \S+ has not answered", str(failure))


def _between_checkpoints(run_dir: Path) -> bool:
    """Return True if the job is well after a checkpoint and long before the next, while none is being written."""
    saved = finished_steps(run_dir / CHECKPOINTS)
    step = int(read_journal(run_dir / METRICS)[-1]["step"])
    return bool(saved) and 50 < step - saved[-1] < EVERY / 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hybrid", "sync"])
def test_no_checkpoint_comes_after_updates_that_not_all_servers_have(mode: str, tmp_path: Path) -> None:
    """An embedding worker is killed while one of two servers stands still, and so lacks what the other has."""
    words = [*WORDS, f"mode={mode}", "cluster.embedding_servers=2", f"checkpoint.every_steps={EVERY}"]
    words += ["recovery.max_restarts=0"]
    run_dir = tmp_path / "run"
    with Launched(words, run_dir) as job:
        pids = job.wait_for_training()
        poll_for(lambda: _between_checkpoints(run_dir), STEPS_S, "steps after a checkpoint")
        os.kill(pids["embedding-server-1"], signal.SIGSTOP)
        stopped = psutil.Process(pids["embedding-server-1"])
        poll_for(lambda: stopped.status() == psutil.STATUS_STOPPED, LIMIT_S, "a server that stands still")
        saved = finished_steps(run_dir / CHECKPOINTS)
        os.kill(pids["embedding-worker-0"], signal.SIGKILL)
        poll_for(lambda: "embedding-worker-0" not in running(pids), LIMIT_S, "the end of the worker")
        os.kill(pids["embedding-server-1"], signal.SIGCONT)
        code, _ = job.end(within_s=LIMIT_S)

        assert code == 1
        assert saved
        assert errors(job)[0].startswith("error: embedding-worker-0 was killed by SIGKILL")
        assert finished_steps(run_dir / CHECKPOINTS) == saved
        assert running(pids) == []
