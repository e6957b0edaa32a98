"""`persia attach`, `persia stop` and `persia logs`: a job that goes on by itself, found by its run directory."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

ATTACH = examples("persia attach runs/criteo-20261121-081500  # show a job whose command has ended")
STOP = examples(
    "persia stop runs/criteo-20261121-081500        # save the model, and end the job",
    "persia stop runs/criteo-20261121-081500 --now  # end it at once",
)
LOGS = examples(
    "persia logs runs/criteo-20261121-081500                     # of all roles",
    "persia logs runs/criteo-20261121-081500 embedding-server-1  # of one replica",
)
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)]


def attach(run: Run, progress: Annotated[bool, typer.Option("--progress", hidden=True)] = False) -> None:
    """Show a running job until it ends, and its results.

    With cluster=hosts and ray, Ctrl-C stops the job, as it does in persia train; closing the terminal does not. With
    other clusters nothing that ends this command ends the job.
    """
    from persia_cli.commands.followed import follow_to_end, noting_signals, show_progress, stops_with_command

    with noting_signals() as came:
        (show_progress if progress else follow_to_end)(run, came, stops_with_command(run))


def stop(run: Run, now: Annotated[bool, typer.Option("--now", help="Save nothing.")] = False) -> None:
    """Save the model of a running job and end it.

    It works wherever the run directory is; on Kubernetes, use kubectl.
    """
    from persia_cli.commands.followed import end_as_job, job_of, refuse_foreign

    refuse_foreign(run)
    job = job_of(run)
    job.stop_and_wait(at_once=now)
    job.fetch()
    end_as_job(run)


def logs(
    run: Run,
    role: Annotated[
        str,
        typer.Argument(metavar="[ROLE]", help="A role, a replica such as nn-worker-0, or driver.", show_default="all"),
    ] = "",
) -> None:
    """Print the logs of a run's roles.

    Those of a job with cluster=hosts are copied from its first machine. A job on several machines also has a log of
    its driver, the process that runs it.
    """
    from persia_cli.commands.followed import fetch, where_logs_are
    from persia_cli.commands.screen import err, out, say
    from persia_cli.engines.job import ROLES
    from persia_cli.engines.resumed import DRIVER
    from persia_cli.errors import UserError

    fetch(run)
    found = {path.stem: path for folder in (DRIVER, ROLES) for path in sorted((run / folder).glob("*.log"))}
    chosen = {name: path for name, path in found.items() if role in ("", name, name.rpartition("-")[0])}
    if not chosen:
        there = f"there are {', '.join(found)}" if found else where_logs_are(run, role)
        raise UserError(f"{run} has no logs{f' of {role}' if role else ''}: {there}")
    for name, path in chosen.items():
        if len(chosen) > 1:
            say(err(), f"== {name}")
        out().out(path.read_text(encoding="utf-8", errors="replace"), end="", highlight=False)
