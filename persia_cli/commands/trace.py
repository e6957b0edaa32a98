"""`persia trace`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

EXAMPLES = examples(
    "persia trace runs/criteo-20261121-081500 steps.json  # of a training with train.trace_steps=[20,220]",
)


def trace(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    output: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, for Perfetto.")],
) -> None:
    """Write the timeline of the steps of train.trace_steps.

    It has the work of every role; `persia train --trace` writes it itself. Recordings stay in the run directory. For a
    running job the timeline has what was recorded so far.
    """
    from persia_cli.commands.progress import SCREEN
    from persia_cli.errors import UserError
    from persia_cli.jobs.follow import fetch, plan_of
    from persia_cli.jobs.trace import leave_trace, require_file

    require_file(output)
    fetch(run, SCREEN)
    plan = plan_of(run)
    if plan.job.trace_first >= plan.job.trace_last:
        raise UserError(f"{run} has no recordings: train with train.trace_steps=[FIRST,LAST], or with --trace FILE")
    leave_trace(run, plan.job, plan.replicas, output, SCREEN)
