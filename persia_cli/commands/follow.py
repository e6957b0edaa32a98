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


def attach(run: Run) -> None:
    """Show a job that goes on without its command, and its results when it ends.

    With cluster=hosts and ray, Ctrl-C stops the job, as it does in persia train; the end of the terminal does not.
    With cluster=slurm, and in the container of a coordinator on Kubernetes, nothing that ends this command does.
    """
    if _is_on_slurm(run):
        from persia_cli.commands.slurm_job import attach_to_slurm

        attach_to_slurm(run)
    elif _is_on_ray(run):
        from persia_cli.commands.ray_job import attach_to_ray

        attach_to_ray(run)
    elif _is_on_hosts(run):
        from persia_cli.commands.hosts_job import attach_to

        attach_to(run)
    else:
        from persia_cli.commands.launched_job import attach_to_launched

        attach_to_launched(run)


def stop(
    run: Run,
    now: Annotated[bool, typer.Option("--now", help="Save nothing.")] = False,
) -> None:
    """Save the model of a job and end the job, from wherever its run directory is; on Kubernetes kubectl does that."""
    if _is_on_slurm(run):
        from persia_cli.commands.slurm_job import stop_on_slurm

        stop_on_slurm(run, at_once=now)
    elif _is_on_ray(run):
        from persia_cli.commands.ray_job import stop_on_ray

        stop_on_ray(run, at_once=now)
    elif _is_on_hosts(run):
        from persia_cli.commands.hosts_job import stop_job

        stop_job(run, at_once=now)
    else:
        from persia_cli.commands.launched_job import stop_launched

        stop_launched(run, at_once=now)


def logs(
    run: Run,
    role: Annotated[
        str,
        typer.Argument(metavar="[ROLE]", help="A role, a replica such as nn-worker-0, or driver.", show_default="all"),
    ] = "",
) -> None:
    """Print the logs of a run's roles; those of a job with cluster=hosts are fetched from its machines.

    A job with cluster=ray has a log of its driver too, the process that runs it.
    """
    from persia_cli.commands.hosts_job import fetch_logs
    from persia_cli.commands.launched_job import require_logs_here
    from persia_cli.commands.screen import err, out, say
    from persia_cli.engines.job import DRIVEN, ROLES
    from persia_cli.errors import UserError

    if _is_on_hosts(run):
        fetch_logs(run)
    found = {path.stem: path for folder in (DRIVEN, ROLES) for path in sorted((run / folder).glob("*.log"))}
    chosen = {name: path for name, path in found.items() if role in ("", name, name.rpartition("-")[0])}
    if not chosen:
        require_logs_here(run, role)
        there = f"there are {', '.join(found)}" if found else "the run has none"
        raise UserError(f"{run} has no logs{f' of {role}' if role else ''}: {there}")
    for name, path in chosen.items():
        if len(chosen) > 1:
            say(err(), f"== {name}")
        out().out(path.read_text(encoding="utf-8", errors="replace"), end="", highlight=False)


def _is_on_hosts(run: Path) -> bool:
    from persia_cli.engines.hosts.begin import STATE

    return (run / STATE).is_file()


def _is_on_slurm(run: Path) -> bool:
    from persia_cli.engines.slurm.queued import job_of

    return job_of(run) is not None


def _is_on_ray(run: Path) -> bool:
    from persia_cli.engines.ray.driver import driver_of

    return driver_of(run) is not None
