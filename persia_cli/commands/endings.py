"""Messages about a job that a signal or Ctrl-C ends: what is kept of it, and how to continue it."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from persia_cli.commands.screen import err, say
from persia_cli.engines.signals import PreemptedNow
from persia_cli.errors import PreemptedError, count
from persia_cli.observe.journal import EVENTS, read_journal
from persia_cli.plan.job import JobPlan
from persia_cli.storage.addresses import printable
from persia_cli.store.checkpoints.manifest import checkpoint_folder, checkpoints_of, finished_steps

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""

ROLLBACK = "rollback"
"""Label of a sentence about a job that goes back to a checkpoint."""


@contextmanager
def ended_in_words(plan: JobPlan, words: Sequence[str]) -> Iterator[None]:
    """Print how to continue a job that a signal or Ctrl-C ends in the block, and raise the exit code."""
    try:
        yield
    except (PreemptedError, PreemptedNow) as ended:
        say(err(), f"{ended}: everything is stopped; {going_on(plan, words)}")
        raise typer.Exit(PreemptedError.exit_code) from None
    except KeyboardInterrupt:
        say(err(), f"interrupted; everything is stopped; {_kept(plan)}")
        raise typer.Exit(INTERRUPTED) from None


def _kept(plan: JobPlan) -> str:
    """Return as text what an interrupted job leaves."""
    if plan.job.task == "predict":
        return f"no scores are written to {plan.job.output}"
    if plan.job.task == "evaluate":
        return "the model is unchanged"
    checkpoints = checkpoints_of(plan.run_dir, plan.run.checkpoint.path)
    if steps := finished_steps(checkpoints):
        kept = checkpoint_folder(checkpoints, steps[-1])
        return f"the model of step {steps[-1]:,} is kept in {kept}; persia resume {plan.run_dir} goes on from there"
    if plan.is_resumed:
        return f"nothing was saved since; persia resume {plan.run_dir} goes on from {plan.job.load}"
    return (
        "the model is lost, since nothing was saved yet (checkpoint.every_steps saves during training); "
        f"{plan.run_dir} keeps the metrics"
    )


def going_on(plan: JobPlan, words: Sequence[str]) -> str:
    """Return as text how to continue a job that a signal has ended, and what that repeats."""
    if plan.job.task != "train":
        return f"{_kept(plan)}; the same command begins again"
    run_dir = shlex.quote(str(plan.run_dir))
    trained = _trained(plan.run_dir)
    checkpoints = checkpoints_of(plan.run_dir, plan.run.checkpoint.path)
    steps = finished_steps(checkpoints)
    if plan.is_resumed and (not steps or steps[-1] < plan.job.first_step):
        again = (
            f" and trains {count(trained - plan.job.first_step, 'step')} again" if trained > plan.job.first_step else ""
        )
        return f"nothing was saved since; persia resume {run_dir} goes on from {plan.job.load}{again}"
    if not steps:
        again = shlex.join(["persia", "train", *map(printable, words), "resume=auto", "--run-dir", str(plan.run_dir)])
        over = f", with the {count(trained, 'step')} that were trained" if trained else ""
        return f"nothing was saved yet; {again} begins again{over}"
    lost = max(trained - steps[-1], 0)
    repeats = f" and trains {count(lost, 'step')} again" if lost else ""
    saved = f"the model of step {steps[-1]:,} is saved in {checkpoint_folder(checkpoints, steps[-1])}"
    return f"{saved}; persia resume {run_dir} goes on from there{repeats}"


def _trained(run_dir: Path) -> int:
    """Return how many steps were trained, as the record of a run that was stopped says."""
    ends = [event for event in read_journal(run_dir / EVENTS) if event.get("phase") == "stopped"]
    return int(ends[-1].get("step", 0)) if ends else 0
