"""`persia runs`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import AsJson, examples

LS = (
    "persia runs ls                          # runs in the folder runs",
    "persia runs ls sweeps/lr-20261121-0815  # points of a sweep",
    "persia runs ls s3://bucket/shop         # runs whose record is there (train --run-dir URI)",
)
COMPARE = ("persia runs compare runs/shop-20261121-081500 runs/shop-20261121-091500",)

app = typer.Typer(no_args_is_help=True, help="List and compare runs.", epilog=examples(*LS, *COMPARE))


@app.command(epilog=examples(*LS))
def ls(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder of the run directories, or its URI.", show_default="runs")
    ] = "runs",
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first, with their states, AUC and checkpoints."""
    import shlex
    import time
    from dataclasses import asdict

    from persia_cli.commands.runs_view import show_runs
    from persia_cli.commands.screen import err, labelled, out, propose, say_json
    from persia_cli.errors import UserError
    from persia_cli.jobs.run_dirs import uri_of
    from persia_cli.observe.overview import summaries, summaries_at
    from persia_cli.storage.locations import location_of

    if (uri := uri_of(folder)) is not None:
        listed = summaries_at(location_of(uri), time.time())
    elif Path(folder).is_dir():
        listed = summaries(Path(folder), time.time())
    else:
        raise UserError(f"there is no folder {folder}; `persia train` puts runs into the folder runs")
    if as_json:
        say_json({"runs": [asdict(run) for run in listed]})
        return
    if not listed:
        labelled(err(), "note", f"{folder} holds no runs")
        return
    show_runs(out(), listed)
    first, *others = [shlex.quote(run.run_dir) for run in listed]
    # The runs of a comparison have to be here.
    again = f"persia runs compare {first} {others[0]}" if others and not uri else f"persia report {first}"
    propose(err(), again)


@app.command(epilog=examples(*COMPARE))
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN …", help="Run directories.")],
    as_json: AsJson = False,
) -> None:
    """Show the settings in which runs differ, and their metrics side by side."""

    from persia_cli.commands.runs_view import show_side_by_side
    from persia_cli.commands.screen import err, out, propose, say_json
    from persia_cli.errors import UserError
    from persia_cli.observe.history import key_metrics, read_history
    from persia_cli.observe.overview import differing_settings

    if len(runs) < 2:
        raise UserError("name two or more runs to compare; `persia runs ls` lists them")
    histories = [read_history(run) for run in runs]
    settings = differing_settings([history.run for history in histories])
    metrics = [key_metrics(history) for history in histories]
    side_by_side = {
        name: [of_run.get(name, "-") for of_run in metrics]
        for name in dict.fromkeys(name for f in metrics for name in f)
    }
    if as_json:
        named = {"runs": list(map(str, runs)), "settings": settings, "figures": side_by_side}
        say_json(named)
        return
    show_side_by_side(out(), runs, settings, side_by_side)
    propose(err(), f"persia report {runs[0]}")
