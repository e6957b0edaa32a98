"""A job one of whose processes is killed goes back to its newest checkpoint by itself, and ends as if undisturbed."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, finished_steps, newest_checkpoint
from tests.conftest import poll_for
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import train
from tests.support.launched import Launched, running

STEPS, EVERY = 300, 50
WORDS = [
    *("conf=synthetic", "cluster=local", "mode=sync", "train.batch_size=32", "train.log_every_steps=5"),
    *("dataset.generator.train_rows=640", "dataset.generator.eval_rows=96", f"train.steps={STEPS}", "train.epochs=100"),
    *("eval.every_steps=120", f"checkpoint.every_steps={EVERY}", "checkpoint.keep=2"),
]
LIMIT_S = 120.0


def figures(run_dir: Path) -> list[dict[str, Any]]:
    """Return every recorded metric but speed, time, and those of windows, which begin anew."""
    return [
        {k: v for k, v in line.items() if k not in ("time", "samples_per_s") and "window_" not in k}
        for line in map(json.loads, (run_dir / METRICS).read_text().splitlines())
    ]


def recoveries(run_dir: Path) -> list[dict[str, Any]]:
    return [event for event in read_journal(run_dir / EVENTS) if event["event"] == "recovered"]


def kill_after(job: Launched, name: str, step: int) -> None:
    """Kill a replica, whose memory is lost, once it trains and there is a checkpoint of `step` or later."""

    def due() -> bool:
        there = [saved for saved in finished_steps(job.run_dir / CHECKPOINTS) if saved >= step]
        return bool(there) and name in running(job.pids())

    poll_for(lambda: job.process.poll() is not None or due(), LIMIT_S, f"the checkpoint of step {step}")
    assert job.process.poll() is None, job.output
    os.kill(job.pids()[name], signal.SIGKILL if name.startswith("nn") else signal.SIGSEGV)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("saves", [True, False])
def test_a_killed_process_costs_steps_but_changes_nothing(tmp_path: Path, saves: bool) -> None:
    """Without a checkpoint training starts again from its beginning."""
    name, words = "nn-worker-0", [*WORDS, *([] if saves else ["checkpoint.every_steps=null"])]
    straight = train([*words, "cluster=embedded"], tmp_path / "straight")
    with Launched([*words, "cluster.embedding_servers=2"], tmp_path / "run") as job:
        if saves:
            kill_after(job, name, EVERY)
        else:
            os.kill(job.wait_for_training()[name], signal.SIGKILL)
        code, _ = job.end(LIMIT_S)
        assert code == 0, job.output
        assert f"{name} was killed by SIG" in job.output
        [recovered] = recoveries(job.run_dir)
        assert recovered["replica"] == name
        assert recovered["seconds"] < 60
        assert figures(job.run_dir) == figures(straight.run_dir)
        assert_same_model(
            newest_checkpoint(job.run_dir / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS)
        )


@pytest.mark.slow
@pytest.mark.processes
def test_ranks_find_each_other_again(tmp_path: Path) -> None:
    """Ranks that were killed leave the file by which they had met, with an address on which no process listens."""
    words = [*WORDS, "cluster.nn_workers=2", "mode=hybrid"]
    with Launched(words, tmp_path / "run") as job:
        kill_after(job, "nn-worker-0", EVERY)
        code, _ = job.end(LIMIT_S)
        assert code == 0, job.output
        assert [event["replica"] for event in recoveries(job.run_dir)] == ["nn-worker-0"]


@pytest.mark.slow
@pytest.mark.processes
def test_deaths_without_end_end_the_job(tmp_path: Path) -> None:
    with Launched([*WORDS, "recovery.max_restarts=2"], tmp_path / "run") as job:
        for back in (1, 2, 3):
            kill_after(job, "embedding-server-0", EVERY)
            poll_for(
                lambda back=back: job.process.poll() is not None or job.output.count("the job goes on") == back,
                LIMIT_S,
                "the job to go back, or to end",
            )
        code, _ = job.end(LIMIT_S)
        assert code == 1
        assert job.output.count("the job goes on") == 2
        assert "error: embedding-server-0 was killed by SIGSEGV" in job.output
        assert "went back 2 times within 600 s (recovery.max_restarts)" in job.output


@pytest.mark.processes
@pytest.mark.slow
def test_without_restarts_the_job_ends(tmp_path: Path) -> None:
    with Launched([*WORDS, "recovery.max_restarts=0"], tmp_path / "run") as job:
        job.wait_for_training()
        os.kill(job.pids()["embedding-server-0"], signal.SIGSEGV)
        code, _ = job.end(LIMIT_S)
        assert code == 1
        assert "the job goes on" not in job.output
