"""SIGTERM and SIGUSR1 at any moment save the model, and a resumed run computes what an undisturbed one does."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from persia_cli.engines.job import JobResult
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, finished_steps, newest_checkpoint, read_manifest
from persia_cli.store.checkpoints.retention import BEST
from tests.conftest import poll_for
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import train
from tests.support.launched import ENDLESS, Launched, running

pytestmark = pytest.mark.timeout(600)

NETWORK = """
import time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape.dense + sum(feature.dim for feature in shape.pooled), shape.tasks)

    def forward(self, batch):
        time.sleep({train_s} if self.training else {eval_s})
        return self.layer(torch.cat([batch.dense, *(group.flatten(1) for group in batch.groups)], dim=1))
"""
"""A network that takes its time, so that a test can reach any phase."""

STEPS, EVAL_EVERY = 60, 20
WORDS = [
    *("conf=synthetic", "mode=sync", "train.batch_size=32", "train.log_every_steps=10", "train.epochs=5"),
    *("dataset.generator.train_rows=640", "dataset.generator.eval_rows=320", f"train.steps={STEPS}"),
    *(
        f"eval.every_steps={EVAL_EVERY}",
        "checkpoint.every_steps=25",
        "checkpoint.grace_s=60",
        "cluster.stop_timeout_s=10",
    ),
    "train.stop_early={metric: auc, patience: 3}",
]


def words_of(folder: Path, cluster: str, train_s: float = 0.02, eval_s: float = 0.02) -> list[str]:
    (folder / "network.py").write_text(NETWORK.format(train_s=train_s, eval_s=eval_s))
    return [*WORDS, f"cluster={cluster}", "model={kind: custom, dim: 4, file: network.py, name: Net, args: {}}"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """The run, undisturbed."""
    folder = tmp_path_factory.mktemp("straight")
    words = [word.replace("network.py", str(folder / "network.py")) for word in words_of(folder, "embedded", 0, 0)]
    return train(words, folder / "run")


def events(run_dir: Path) -> list[dict[str, Any]]:
    return read_journal(run_dir / EVENTS)


def is_in(phase: str, times: int = 1) -> Callable[[Path], bool]:
    """True once the run is in a phase, for the so-manieth time."""

    def reached(run_dir: Path) -> bool:
        phases = [event["phase"] for event in events(run_dir) if event["event"] == "phase"]
        return phases[-1:] == [phase] and phases.count(phase) >= times

    return reached


def trains(run_dir: Path) -> bool:
    return (run_dir / "metrics.jsonl").exists() and len((run_dir / "metrics.jsonl").read_text().splitlines()) >= 2


def joins(run_dir: Path) -> bool:
    return any(event["event"] == "began" for event in events(run_dir))


def starts(run_dir: Path) -> bool:
    return (run_dir / "roles" / "coordinator-0.log").exists()


PHASES = {
    "starting": starts,
    "joining": joins,
    "training": trains,
    "evaluating": is_in("evaluating"),
    "last evaluation": is_in("evaluating", 3),
    "saving": is_in("saving"),
}


def resume(run_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "persia_cli", "resume", str(run_dir), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=run_dir.parent)


def require_same(run_dir: Path, straight: JobResult) -> None:
    """The model to the bit; every evaluation once and with the same metrics; every step in one line of training."""
    assert_same_model(newest_checkpoint(run_dir / CHECKPOINTS), newest_checkpoint(straight.run_dir / CHECKPOINTS))
    ours, theirs = (
        [json.loads(line) for line in (each / "metrics.jsonl").read_text().splitlines()]
        for each in (run_dir, straight.run_dir)
    )
    left_out = ("time", "samples_per_s")
    evaluations = [
        [{k: v for k, v in line.items() if k not in left_out} for line in lines if line["split"] == "eval"]
        for lines in (ours, theirs)
    ]
    assert evaluations[0] == evaluations[1]
    steps = [line["step"] for line in ours if line["split"] == "train"]
    assert steps == sorted(set(steps)), "no line twice"
    assert {line["step"] for line in theirs if line["split"] == "train"} <= set(steps), "no gap"


def processes_of(job: Launched) -> list[psutil.Process]:
    driver = psutil.Process(job.process.pid)
    return [driver, *driver.children(recursive=True)]


def disturb(job: Launched, everyone: bool, number: signal.Signals) -> None:
    for process in processes_of(job) if everyone else [psutil.Process(job.process.pid)]:
        with_pid = process.pid
        try:
            os.kill(with_pid, number)
        except ProcessLookupError:
            continue


def interrupted_and_resumed(
    folder: Path, straight: JobResult, phase: str, cluster: str, everyone: bool, number: signal.Signals
) -> None:
    slow = {"evaluating": (0.0, 0.5), "last evaluation": (0.0, 0.3)}.get(phase, (0.05, 0.0))
    words = words_of(folder, cluster, *slow)
    run_dir = folder / "run"
    with Launched(words, run_dir) as job:
        poll_for(lambda: PHASES[phase](run_dir) or job.process.poll() is not None, 120.0, f"the phase {phase}")
        assert job.process.poll() is None, job.output
        children = [process.pid for process in processes_of(job)]
        disturb(job, everyone, number)
        code, seconds = job.end(within_s=100.0)
        assert code == 75, job.output
        assert seconds < 60 + 10
        assert "Traceback" not in job.output
        assert running({str(pid): pid for pid in children}) == []
        assert list(job.temporary.glob("persia-*")) == []
        assert f"{number.name}: everything is stopped; " in job.output
    steps = finished_steps(run_dir / CHECKPOINTS)
    assert len(steps) == len(set(steps))
    assert not [path for path in (run_dir / CHECKPOINTS).glob("*") if path.suffix and path.name != BEST]
    if not steps:
        assert phase in ("starting", "joining")
        assert "resume=auto --run-dir" in job.output
        command = [sys.executable, "-m", "persia_cli", "train", *words, "resume=auto", "--run-dir", str(run_dir)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    else:
        [stopped] = [event for event in events(run_dir) if event.get("phase") == "stopped"]
        assert steps[-1] == stopped["step"], "all that was trained is saved"
        assert stopped["signal"] in (number.name, "SIGUSR1")
        assert f"persia resume {run_dir} goes on from there" in job.output
        due = read_manifest(newest_checkpoint(run_dir / CHECKPOINTS)).progress.evaluation_due
        # A slow machine may get the signal so late that training stops just before an evaluation, or just after one.
        # The model is saved before the last evaluation.
        assert due == ("evaluat" in phase) or (phase in ("training", "saving") and steps[-1] % EVAL_EVERY == 0)
        (folder / "network.py").write_text(NETWORK.format(train_s=0, eval_s=0))
        ended = resume(run_dir)
    assert ended.returncode == 0, ended.stderr
    require_same(run_dir, straight)


def test_sigterm_in_training_saves_and_the_resumed_run_has_the_same_bits(tmp_path: Path, straight: JobResult) -> None:
    interrupted_and_resumed(tmp_path, straight, "training", "embedded", everyone=False, number=signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("everyone", [False, True], ids=["driver", "everyone"])
@pytest.mark.parametrize("phase", PHASES)
def test_sigterm_in_every_phase(tmp_path: Path, straight: JobResult, phase: str, everyone: bool) -> None:
    interrupted_and_resumed(tmp_path, straight, phase, "local", everyone, signal.SIGTERM)


@pytest.mark.slow
def test_a_terminal_that_is_closed_saves_and_ends_the_job(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    words = [*ENDLESS, "--run-dir", str(run_dir)]
    script = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    command = [sys.executable, "-m", "persia_cli", "train", *words]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", script, *command[1:]])
    os.set_blocking(terminal, False)
    ended: list[int] = []

    def shows_training() -> bool:
        with suppress(BlockingIOError):
            os.read(terminal, 2**16)  # a terminal that is full holds the command up
        return trains(run_dir)

    def has_ended() -> bool:
        ended.extend(status for pid, status in [os.waitpid(child, os.WNOHANG)] if pid)
        return bool(ended)

    try:
        poll_for(shows_training, 120.0, "steps trained")
        os.close(terminal)
        poll_for(has_ended, 60.0, "the end of the command")
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(ended[0]) == 75
    [stopped] = [event for event in events(run_dir) if event.get("phase") == "stopped"]
    assert stopped["signal"] in ("SIGHUP", "SIGUSR1")
    assert finished_steps(run_dir / CHECKPOINTS) == [stopped["step"]]


@pytest.mark.slow
def test_a_grace_that_is_too_short_is_reported(tmp_path: Path) -> None:
    words = [*words_of(tmp_path, "local", train_s=3.0), "checkpoint.grace_s=1", "checkpoint.every_steps=1"]
    with Launched(words, tmp_path / "run") as job:
        poll_for(lambda: any(event["event"] == "saved" for event in events(tmp_path / "run")), 120.0, "a checkpoint")
        poll_for(lambda: is_in("training", 2)(tmp_path / "run"), 60.0, "the next step")
        os.kill(job.process.pid, signal.SIGTERM)
        code, seconds = job.end(within_s=30.0)
        assert code == 75, job.output
        assert seconds < 15.0
        [stopped] = [event for event in events(tmp_path / "run") if event.get("phase") == "stopped"]
        assert stopped["text"] == "the model was not saved within 1 s (checkpoint.grace_s)"
        assert "goes on from there" in job.output
    assert not list((tmp_path / "run" / CHECKPOINTS).glob("*.partial"))


def save_now(run_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "persia_cli", "checkpoint", "now", str(run_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_checkpoint_on_request_while_training_goes_on(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with Launched([*ENDLESS, "checkpoint.keep=2"], run_dir) as job:
        poll_for(lambda: trains(run_dir) or job.process.poll() is not None, 90.0, "steps trained")
        asked = save_now(run_dir)
        assert asked.returncode == 0, asked.stderr
        checkpoint = Path(asked.stdout.strip())
        assert read_manifest(checkpoint).trigger == "request"
        lines = len((run_dir / "metrics.jsonl").read_text().splitlines())
        poll_for(lambda: len((run_dir / "metrics.jsonl").read_text().splitlines()) > lines + 1, 60.0, "more steps")
        job.process.send_signal(signal.SIGINT)
        assert job.end(within_s=30.0)[0] == 130
    again = save_now(run_dir)
    assert again.returncode == 2
    assert f"the run in {run_dir} is not running; its newest checkpoint is {checkpoint}" in again.stderr


@pytest.mark.slow
def test_checkpoints_by_the_clock(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    words = [*ENDLESS, "checkpoint.every_minutes=0.05", "checkpoint.keep=2"]
    with Launched(words, run_dir) as job:
        poll_for(
            lambda: len([e for e in events(run_dir) if e["event"] == "saved"]) >= 4 or job.process.poll() is not None,
            120.0,
            "four checkpoints",
        )
        job.process.send_signal(signal.SIGINT)
        job.end(within_s=30.0)
    saved = [event for event in events(run_dir) if event["event"] == "saved"]
    assert {event["trigger"] for event in saved} == {"minutes"}
    gaps = [after["time"] - before["time"] for before, after in pairwise(saved)]
    assert min(gaps) >= 2.9
    assert finished_steps(run_dir / CHECKPOINTS) == [event["step"] for event in saved[-2:]]
