"""Carry out a planned job with its progress on the screen."""

from collections.abc import Sequence
from datetime import datetime
from itertools import count
from pathlib import Path

import typer

from persia_cli.commands.describe import describe, warn_of_stand_in
from persia_cli.commands.progress import following
from persia_cli.commands.results import show_results
from persia_cli.commands.screen import err, say
from persia_cli.commands.tracing import leave_trace
from persia_cli.errors import UserError
from persia_cli.plan.job import JobPlan

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def carry_out(plan: JobPlan, words: Sequence[str], trace: Path | None = None) -> None:
    """Run the job to its end and print what it came to; `words` are the user's, for the commands proposed.

    However the job ends, the traces of its replicas are joined into the file `trace`.
    """
    if plan.run.cluster.kind == "embedded":
        from persia_cli.launch.embedded import launch
    else:
        from persia_cli.launch.local import launch
    describe(err(), plan)
    warn_of_stand_in(err(), plan, words)
    try:
        with following(err(), plan.run_dir, plan.job, plan.run.train.batch_size) as follow:
            result = launch(plan, follow)
        show_results(plan, result, words)
    except KeyboardInterrupt:
        say(err(), f"interrupted; everything is stopped, and {plan.run_dir} keeps what was recorded")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if trace:
            leave_trace(err(), plan, trace)


def new_folder(parent: Path, prefix: str = "") -> Path:
    """Return a folder that is not there yet, named by the present time; a second one in a second gets a number."""
    name = f"{prefix}{datetime.now():%Y%m%d-%H%M%S}"
    candidates = (parent / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in candidates if not folder.exists())


def choose_run_dir(name: str, chosen: Path | None) -> Path:
    """Return the run directory, by default one of its own; raises UserError if it holds a run already."""
    if chosen is None:
        return new_folder(Path("runs"), f"{name}-")
    if (chosen / "config.yaml").exists():
        raise UserError(f"{chosen} already holds a run; choose another --run-dir or remove it")
    return chosen
