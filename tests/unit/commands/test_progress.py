"""Progress: a live line on a terminal, lines of text or JSON elsewhere."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from persia_cli.commands.options import OUTPUT
from persia_cli.commands.progress import following
from persia_cli.observe.journal import EVENTS, METRICS, Journal
from persia_cli.plan.job import Job

JOB = Job(task="train", run_dir="run", load=None, train_rows=1000, eval_rows=200, steps=10, eval_steps=2)
TRAINING: dict[str, Any] = {
    "step": 4, "samples": 400, "split": "train", "loss": 0.5, "auc": 0.75, "log_loss": 0.5, "ne": 0.9,
    "calibration": 1.0, "samples_per_s": 200.0, "staleness_mean": 1.5, "staleness_max": 3,
    "staleness": [{"1": 3}, {"1": 1, "3": 2}], "rows": 1234,
}  # fmt: skip
EVALUATION: dict[str, Any] = {
    "step": 10, "samples": 1000, "split": "eval", "loss": 0.4, "auc": 0.8, "log_loss": 0.4, "ne": 0.8,
    "calibration": None, "samples_per_s": 100.0, "rows": 1300,
}  # fmt: skip


def shown(run_dir: Path, terminal: bool, width: int) -> str:
    """Play a job's record, a line between two looks at it, and return what was shown."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=width, color_system=None, highlight=False)
    events, metrics = Journal(run_dir / EVENTS), Journal(run_dir / METRICS)
    with following(console, run_dir, JOB, 100) as follow:
        follow()
        events.write(event="compiling", done=0, total=3)
        for done in (1, 2, 3):
            events.write(event="compiling", done=done, total=3, kernel=f"kernel_{done}")
        follow()
        events.write(event="ready", replicas=[{"name": "coordinator-0"}], parameters=1000)
        events.write(event="phase", phase="training", step=0)
        events.write(event="progress", rows=0, of=200, eta_s=None, rows_per_s=0.0)
        metrics.write(**TRAINING)
        follow()
        events.write(event="warning", text="table a is full")
        events.write(event="note", text="table b is full")
        events.write(event="stopped_early", step=4, text="training ends early")
        follow()
        metrics.write(**EVALUATION)
        follow()
        events.write(event="saved", path="run/checkpoints/step-10", step=10)
        events.write(event="roles", roles=[])
        follow()
    events.close()
    metrics.close()
    return stream.getvalue()


def test_lines_of_text(tmp_path: Path) -> None:
    assert shown(tmp_path, terminal=False, width=40).splitlines() == [
        "compiling 3 kernels for this processor",
        "weights   1,000 in the dense network",
        "training  step 4/10  loss 0.5000  AUC 0.7500  200 samples/s  0:03 left",
        "warning   table a is full",
        "note      table b is full",
        "note      training ends early",
        "evaluated step 10  loss 0.4000  AUC 0.8000",
        "saved     run/checkpoints/step-10",
    ]


def test_lines_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OUTPUT, "as_json", True)
    lines = [json.loads(line) for line in shown(tmp_path, terminal=False, width=40).splitlines()]
    metrics = [line for line in lines if line["event"] == "metrics"]
    assert [line["step"] for line in metrics] == [4, 10]
    assert (metrics[0]["auc"], metrics[0]["eta_s"], metrics[1]["calibration"]) == (0.75, 3, None)
    assert {"compiling", "ready", "phase", "warning", "saved", "roles"} <= {line["event"] for line in lines}


def test_the_live_line(tmp_path: Path) -> None:
    text = shown(tmp_path, terminal=True, width=160)
    assert "step 4/10  loss 0.5000  AUC 0.7500  200 samples/s  0:03 left" in text
    assert "staleness 1.5, from 1 █|▄·█ to 3  400 samples  1,234 rows" in text
    assert "warning   table a is full" in text
    assert "saved     run/checkpoints/step-10" in text


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_of_an_evaluation_or_a_prediction(tmp_path: Path, terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, color_system=None, highlight=False)
    events = Journal(tmp_path / EVENTS)
    with following(console, tmp_path, JOB, 100) as follow:
        events.write(event="phase", phase="predicting", step=10)
        events.write(event="progress", rows=3000, of=12_000, rows_per_s=1500.5, eta_s=6)
        events.write(event="reliability", step=10, labels={"y": {"predicted": [], "observed": [], "weight": []}})
        follow()
    events.close()
    assert "3,000/12,000 samples  0:06 left  1,500 samples/s" in stream.getvalue()
    assert "reliability" not in stream.getvalue()


@pytest.mark.parametrize("is_due", [False, True])
def test_restored_metrics_are_not_shown_again(tmp_path: Path, is_due: bool) -> None:
    """After a rollback or a resume; an evaluation that is due is of the step of the checkpoint."""
    stream = io.StringIO()
    metrics = Journal(tmp_path / METRICS)
    metrics.write(**TRAINING)
    job = replace(JOB, first_step=4, evaluation_due=is_due)
    with following(Console(file=stream, width=100), tmp_path, job, 100) as follow:
        follow()
        metrics.write(**EVALUATION | {"step": 4})
        metrics.write(**TRAINING | {"step": 6})
        follow()
    metrics.close()
    assert [line.split()[2] for line in stream.getvalue().splitlines()] == [*(["4"] if is_due else []), "6/10"]
