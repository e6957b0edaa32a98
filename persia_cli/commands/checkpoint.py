"""`persia checkpoint`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import AsJson, Model, examples

LS = ("persia checkpoint ls runs/criteo-20261121-081500  # step, size and rows of each, and which one is the best",)
VERIFY = (
    "persia checkpoint verify runs/criteo-20261121-081500                       # all checkpoints of a run",
    "persia checkpoint verify runs/criteo-20261121-081500/checkpoints/step-500  # this one",
)

RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)]

app = typer.Typer(no_args_is_help=True, help="Look at checkpoints and look after them.", epilog=examples(*LS, *VERIFY))


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


@app.command(epilog=examples(*VERIFY))
def verify(folder: Model, as_json: AsJson = False) -> None:
    """Read all of a checkpoint, or of each one of a run, and name every flaw."""
    import shlex
    from dataclasses import asdict

    from persia_cli.checkpoint.verification import checkpoints_in, each_verified
    from persia_cli.commands.checkpoint_view import show_verification, verifying
    from persia_cli.commands.screen import err, out, propose, say_json
    from persia_cli.errors import CheckpointError, count

    checkpoints, run_dir, of_run = checkpoints_in(folder)
    with verifying(err()) as progress:
        found = list(each_verified(checkpoints, run_dir, progress))
    flaws = [*of_run, *(flaw for each in found for flaw in each.flaws)]
    if as_json:
        say_json({"sound": not flaws, "flaws": of_run, "checkpoints": [asdict(each) for each in found]})
    else:
        show_verification(out(), err(), found, of_run)
    if flaws:
        raise CheckpointError(f"{folder} has {count(len(flaws), 'flaw')}; go on from a checkpoint without one")
    if not as_json:
        propose(
            err(),
            f"persia resume {shlex.quote(str(run_dir))} --dry-run"
            if run_dir
            else f"persia table stats {shlex.quote(str(folder))}",
        )
