"""`persia launch-role`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import ConfDir, Words, examples

EXAMPLES = examples(
    "persia launch-role coordinator --coordinator tcp://127.0.0.1:7000 --index 0 --run-dir runs/a conf=criteo",
    "persia launch-role embedding-server --coordinator tcp://127.0.0.1:7000 --index 0",
    "persia launch-role nn-worker --coordinator tcp://127.0.0.1:7000 --index 1",
)


def launch_role(
    role: Annotated[
        str,
        typer.Argument(
            metavar="ROLE",
            help="coordinator, embedding-server, embedding-worker, data-loader or nn-worker.",
            show_default=False,
        ),
    ],
    coordinator: Annotated[
        str, typer.Option("--coordinator", metavar="ADDR", help="Address of the coordinator.", show_default=False)
    ],
    index: Annotated[
        int, typer.Option("--index", metavar="I", min=0, help="Which replica of the role this is.", show_default=False)
    ],
    words: Words = None,
    bind: Annotated[str | None, typer.Option("--bind", metavar="ADDR", help="Address to listen at.")] = None,
    advertise: Annotated[
        str | None, typer.Option("--advertise", metavar="ADDR", help="Address that others reach it at.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", metavar="DIR", help="Run directory; for the coordinator only.")
    ] = None,
    conf_dir: ConfDir = None,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:
    """Start one replica of a role by hand; `persia train` does it for you.

    The coordinator takes the configuration, all others get it from there.
    """
    from persia_cli.launch.role import die_with, run_process

    if parent is not None:
        die_with(parent)
    if words:
        _prepare(role, words, run_dir, conf_dir or [])
    run_process(role, index, coordinator, bind, advertise, run_dir)


def _prepare(role: str, words: list[str], run_dir: Path | None, folders: list[Path]) -> None:
    """Make the run directory of a coordinator that is started with a configuration."""
    from persia_cli.errors import UserError

    if role != "coordinator":
        raise UserError(f"{role} gets its configuration from the coordinator; give '{words[0]}' there")
    if run_dir is None:
        raise UserError("a coordinator started with a configuration needs --run-dir")
    from persia_cli.config.compose import compose_run
    from persia_cli.data.facts import inspect
    from persia_cli.launch.job import prepare_run_dir
    from persia_cli.plan.job import plan_job

    run = compose_run(words, folders)
    prepare_run_dir(plan_job(run, inspect(run.dataset), "train", run_dir))
