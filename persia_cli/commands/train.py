"""`persia train`."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import ConfDir, Overrides, examples

EXAMPLES = examples(
    "persia train                                        # census data that ships with persia",
    "persia train conf=criteo model=ffnn train.epochs=2  # a configuration, an option, a key",
    "persia train conf=./mine.yaml mode=sync --dry-run   # show the plan and start nothing",
    "persia train conf=criteo --trace steps.json         # a timeline of 200 steps, for ui.perfetto.dev",
    "persia train conf=criteo cluster=hosts cluster.hosts=[h1,h2] --render  # what ssh would start there",
    "persia train conf=criteo cluster=slurm --render > job.sh  # a script for sbatch; without --render, it is queued",
)


def train(
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and start nothing.")] = False,
    render: Annotated[
        bool, typer.Option("--render", help="Print what cluster=… submits to other machines, and start nothing.")
    ] = False,
    run_dir: Annotated[
        str | None,  # a URI as a path would lose slashes
        typer.Option(
            "--run-dir",
            metavar="DIR",
            help="Folder of the run; at a URI are its checkpoints and copies of its record.",
            show_default="runs/NAME-TIME",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write a timeline of every role's work, for Perfetto."),
    ] = None,
    trace_steps: Annotated[
        str | None,
        typer.Option(
            "--trace-steps", metavar="FIRST:LAST", help="The steps to trace.", show_default="200 after the first 20"
        ),
    ] = None,
    conf_dir: ConfDir = None,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:
    """Train a model, evaluate it and save it."""
    if parent is not None:
        from persia_cli.engines.processes import die_with

        die_with(parent)
        # A sweep ends its points by SIGINT, also where it itself runs in the background and so ignores it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    from persia_cli.commands.job_view import train_and_show

    train_and_show(overrides or [], conf_dir or [], run_dir, dry_run, render, trace, trace_steps, parent is not None)
