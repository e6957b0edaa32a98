"""`persia checkpoint`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import AsJson, examples

LS = ("persia checkpoint ls runs/criteo-20261121-081500  # step, size and rows of each, and which one is the best",)

RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)]

app = typer.Typer(no_args_is_help=True, help="Look at checkpoints and look after them.", epilog=examples(*LS))


@app.command(epilog=examples(*LS))
def ls(run: RunDir, as_json: AsJson = False) -> None:
    """List the checkpoints of a run, and what was left unfinished."""
    import shlex
    from dataclasses import asdict

    from persia_cli.checkpoint.listing import list_checkpoints
    from persia_cli.commands.checkpoint_view import show_list
    from persia_cli.commands.screen import err, out, propose, say_json
    from persia_cli.observe.history import CONFIG

    found = list_checkpoints(run)
    if as_json:
        say_json(asdict(found))
        return
    show_list(out(), err(), found)
    if found.checkpoints:
        propose(err(), f"persia resume {shlex.quote(str(run))} --dry-run")
    else:
        propose(err(), f"persia train conf={shlex.quote(str(run / CONFIG))} checkpoint.every_steps=1000")
