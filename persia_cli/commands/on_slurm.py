"""`persia on-slurm`, which the script of a job with `cluster=slurm` runs; it is not for people."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

EXAMPLES = examples(
    "persia on-slurm --run-dir runs/shop < shop.yaml  # what the script of persia train cluster=slurm runs"
)


def on_slurm(
    run_dir: Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="Folder of the run.", show_default=False)],
) -> None:
    """Train by the configuration on standard input, on the machines of the job of Slurm that this is the script of."""
    import os

    from persia_cli.commands.slurm_allocation import train_in_allocation
    from persia_cli.config.record import parsed
    from persia_cli.disk import writing
    from persia_cli.engines.background import recorded_exit
    from persia_cli.engines.job import SUBMITTED
    from persia_cli.engines.slurm.allocation import JOB, is_inside
    from persia_cli.engines.slurm.queued import END, take_up
    from persia_cli.errors import UserError

    if not is_inside(os.environ):
        raise UserError("persia on-slurm is for the script of a job of Slurm: give that to sbatch")
    take_up(run_dir, os.environ[JOB])
    end = run_dir / SUBMITTED / END
    with writing(end):
        end.parent.mkdir(parents=True, exist_ok=True)
        end.unlink(missing_ok=True)
    with recorded_exit(end):
        train_in_allocation(parsed(sys.stdin.read(), "standard input"), run_dir, requeues=True)
