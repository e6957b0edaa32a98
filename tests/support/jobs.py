"""Small jobs for tests: a run from a few arguments, and its result."""

from pathlib import Path
from typing import Any

from persia_cli.config.compose import compose_run
from persia_cli.data.read.facts import inspect
from persia_cli.engines.engine import engine_of
from persia_cli.engines.job import JobResult
from persia_cli.observe.staleness import Histogram, merged
from persia_cli.plan.job import JobPlan, plan_job

CRITEO_FFNN = (
    "conf=criteo",
    "model=ffnn",
    "model.norm=none",
    "model.dropout=0",
    "dataset.split={kind: every, n: 5, offset: 4}",
    "train.epochs=1",
)
"""The real Criteo rows, read once by a plain network of 400-400-400, every fifth row for evaluation."""


def plan(words: list[str], run_dir: Path) -> JobPlan:
    """Plan a training job from config arguments."""
    run = compose_run(words)
    return plan_job(run, inspect(run.dataset), "train", run_dir)


def train(words: list[str], run_dir: Path) -> JobResult:
    """Run a training job to its end, embedded or in processes as its arguments select."""
    return launch(plan(words, run_dir))


def launch(job: JobPlan) -> JobResult:
    """Run a planned job to its end."""
    return engine_of(job.run.cluster).launch(job, lambda: None)


def losses(result: JobResult) -> list[float]:
    """The training losses, in order."""
    return [line["loss"] for line in result.metrics if line["split"] == "train"]


def evaluation(result: JobResult) -> dict[str, Any]:
    """The last evaluation."""
    return [line for line in result.metrics if line["split"] == "eval"][-1]


def staleness(result: JobResult) -> list[Histogram]:
    """Return the number of training steps whose rows had each staleness, by rank."""
    lines = [line["staleness"] for line in result.metrics if line["split"] == "train"]
    ranks = zip(*lines, strict=True)
    return [merged([{int(value): steps for value, steps in each.items()} for each in rank]) for rank in ranks]
