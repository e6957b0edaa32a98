"""`persia on-host`, which ssh runs on the machines of a job with `cluster=hosts`; it is not for people."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

EXAMPLES = examples("persia on-host  # what ssh runs on each machine of persia train cluster=hosts")


def on_host(
    start: Annotated[Path | None, typer.Argument(metavar="START", help="Folder of a started job.")] = None,
) -> None:
    """Say what this machine is, and how the replicas of a job on it do; `persia train cluster=hosts` runs this."""
    from persia_cli.engines.hosts.session import run_session

    run_session(start)
