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
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]


def attach(run: Run, progress: Annotated[bool, typer.Option("--progress", hidden=True)] = False) -> None:
    """Show a running job until it ends, and its results.

    With cluster=hosts and ray, Ctrl-C stops the job, as it does in persia train; closing the terminal does not. With
    other clusters nothing that ends this command ends the job.
    """
    from persia_cli.commands.job_view import show_results
    from persia_cli.commands.progress import SCREEN
    from persia_cli.jobs import follow

    with follow.noting_signals() as signals:
        stops = follow.stops_with_command(run)
        if progress:
            try:
                follow.show_progress(run, signals, stops, SCREEN)
            except follow.LeftAloneError as left:  # the command on the other machine prints this
                raise typer.Exit(left.exit_code) from None
        else:
            show_results(*follow.follow_to_end(run, signals, stops, SCREEN))


def stop(run: Run, now: Annotated[bool, typer.Option("--now", help="Save nothing.")] = False) -> None:
    """Save the model of a running job and end it.

    It works wherever the run directory is; on Kubernetes, use kubectl.
    """
    from persia_cli.jobs import follow

    follow.stop(run, at_once=now)


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
    from persia_cli.commands.progress import SCREEN
    from persia_cli.commands.screen import err, out, say
    from persia_cli.jobs.follow import fetch, logs_of

    fetch(run, SCREEN)
    logs = logs_of(run, role)
    for name, path in logs.items():
        if len(logs) > 1:
            say(err(), f"== {name}")
        out().out(path.read_text(encoding="utf-8", errors="replace"), end="", highlight=False)
