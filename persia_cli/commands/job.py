"""Run a planned job with its progress on the screen."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from persia_cli.commands.describe import describe, warn_of_slow_precision, warn_of_stand_in
from persia_cli.commands.progress import following
from persia_cli.commands.results import show_results
from persia_cli.commands.screen import err, say
from persia_cli.commands.tracing import leave_trace
from persia_cli.disk import claim_folder
from persia_cli.launch.job import require_free, timed
from persia_cli.plan.job import JobPlan
from persia_cli.store.manifest import checkpoint_folder, finished_steps

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


def carry_out(plan: JobPlan, words: Sequence[str], trace: Path | None = None) -> None:
    """Run the job to its end and print its results; `words` are the user's, for the proposed commands.

    The replicas' traces are joined into the file `trace`, even if the job fails.
    """
    if plan.run.cluster.kind == "embedded":
        from persia_cli.launch.embedded import launch
    else:
        from persia_cli.launch.local import launch
    describe(err(), plan)
    warn_of_stand_in(err(), plan, words)
    if plan.job.task == "train":
        warn_of_slow_precision(plan.run)
    try:
        with following(err(), plan.run_dir, plan.job, plan.run.train.batch_size) as follow:
            result = launch(plan, follow)
        show_results(plan, result, words)
    except KeyboardInterrupt:
        say(err(), f"interrupted; everything is stopped; {_kept(plan)}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if trace:
            leave_trace(err(), plan, trace)


def claimed(plan: JobPlan) -> JobPlan:
    """Return the plan with its run directory created, with a number in its name if another job has that name."""
    return replace(plan, job=replace(plan.job, run_dir=str(claim_folder(plan.run_dir))))


def choose_run_dir(name: str, chosen: Path | None) -> Path:
    """Return the run directory, by default named after the time; raises UserError if the chosen one is not free."""
    if chosen is None:
        return timed(Path("runs"), f"{name}-")
    require_free(chosen)
    return chosen


def _kept(plan: JobPlan) -> str:
    """Return in words what an interrupted job leaves."""
    if plan.job.task == "predict":
        return f"no scores are written to {plan.job.output}"
    if plan.job.task == "evaluate":
        return "the model is unchanged"
    if steps := finished_steps(plan.run_dir):
        return f"the model of step {steps[-1]:,} is kept in {checkpoint_folder(plan.run_dir, steps[-1])}"
    return (
        "the model is lost, since nothing was saved yet (checkpoint.every_steps saves during training); "
        f"{plan.run_dir} keeps the metrics"
    )
