"""`persia attach`, `persia stop` and `persia logs`: a job on other machines, which goes on by itself."""

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


def attach(run: Run) -> None:
    """Show a job that goes on without its command, and its results when it ends; for cluster=hosts and cluster=slurm.

    With cluster=hosts, Ctrl-C stops the job, as it does in persia train; the end of the terminal does not.
    With cluster=slurm, nothing that ends this command does.
    """
    if _is_on_slurm(run):
        from persia_cli.commands.slurm_job import attach_to_slurm

        attach_to_slurm(run)
        return
    from persia_cli.commands.hosts_job import attach_to

    _require_independent(run)
    attach_to(run)


def stop(
    run: Run,
    now: Annotated[bool, typer.Option("--now", help="Save nothing.")] = False,
) -> None:
    """Save the model of a job with cluster=hosts or slurm, and end the job, from wherever its run directory is."""
    if _is_on_slurm(run):
        from persia_cli.commands.slurm_job import stop_on_slurm

        stop_on_slurm(run, at_once=now)
        return
    from persia_cli.commands.hosts_job import stop_job

    _require_independent(run)
    stop_job(run, at_once=now)


def logs(
    run: Run,
    role: Annotated[
        str, typer.Argument(metavar="[ROLE]", help="A role, or a replica such as nn-worker-0.", show_default="all")
    ] = "",
) -> None:
    """Print the logs of a run's roles; those of a job with cluster=hosts are fetched from its machines."""
    from persia_cli.commands.hosts_job import fetch_logs
    from persia_cli.commands.screen import err, out, say
    from persia_cli.engines.hosts.begin import STATE
    from persia_cli.errors import UserError
    from persia_cli.launch.job import ROLES

    if (run / STATE).is_file():
        fetch_logs(run)
    found = {path.stem: path for path in sorted((run / ROLES).glob("*.log"))}
    chosen = {name: path for name, path in found.items() if role in ("", name, name.rpartition("-")[0])}
    if not chosen:
        there = f"there are {', '.join(found)}" if found else "the run has none"
        raise UserError(f"{run} has no logs{f' of {role}' if role else ''}: {there}")
    for name, path in chosen.items():
        if len(chosen) > 1:
            say(err(), f"== {name}")
        out().out(path.read_text(encoding="utf-8", errors="replace"), end="", highlight=False)


def _require_independent(run: Path) -> None:
    """Raise UserError for a job that does not outlive the command that started it."""
    from persia_cli.config.record import read_run
    from persia_cli.config.schema import WITH_COMMAND
    from persia_cli.errors import UserError
    from persia_cli.observe.history import CONFIG

    if (run / CONFIG).is_file() and (kind := read_run(run / CONFIG).cluster.kind) in WITH_COMMAND:
        raise UserError(
            f"cluster={kind}: the job of {run} is shown by its command, and ends with it; SIGTERM to that one saves "
            "the model first. Of a command that was submitted by ray job, ray job logs and ray job stop do the same"
        )


def _is_on_slurm(run: Path) -> bool:
    from persia_cli.engines.slurm.queued import job_of

    return job_of(run) is not None
