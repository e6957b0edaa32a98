"""`persia report`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

EXAMPLES = examples(
    "persia report runs/criteo-20261121-081500                # report.html in the run directory",
    "persia report runs/criteo-20261121-081500 -o criteo.png  # one picture",
)


def report(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Run directory of a training run, or the URI of one.", show_default=False),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="A .html or .png file.",
            show_default="report.html of the run; for a URI, here",
        ),
    ] = None,
) -> None:
    """Write one page about a run: curves, speed, tables, calibration.

    The page needs no other file, so that it can be sent and archived. Running and failed runs have a page too.
    """
    from persia_cli.commands.run_at_uri import uri_of
    from persia_cli.observe.remote_records import newest_record, records_at
    from persia_cli.storage.locations import address_of, location_of

    if (uri := uri_of(run)) is None:
        _report(Path(run), run, output)
        return
    place = location_of(uri)
    newest_record(place)  # refused if there is none
    with records_at(place) as found:
        [folder] = found
        _report(folder, address_of(place), output or Path("report.html"))


def _report(run: Path, named: str, output: Path | None) -> None:
    """Write the page about the run in a folder, which is `named` so in commands."""
    import shlex
    import time

    from persia_cli.commands.describe import model_words, training_words
    from persia_cli.commands.screen import err, labelled, propose
    from persia_cli.disk import write_whole
    from persia_cli.errors import UserError
    from persia_cli.observe.history import read_history
    from persia_cli.observe.journal import understanding
    from persia_cli.observe.report_page import report_page, report_picture
    from persia_cli.store.checkpoints.manifest import checkpoints_of, finished_steps

    history = read_history(run)
    path = output or run / "report.html"
    if path.suffix not in (".html", ".png"):
        raise UserError(f"{path.name}: a report is a page or a picture; end the name in .html or .png")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.absolute().parent}; create it first")
    now = time.time()
    if path.suffix == ".png":
        with understanding(run):
            report_picture(history, path, now)
    else:
        words = {"model": model_words(history.run), "training": training_words(history.run)}
        with understanding(run):
            page = report_page(history, words, now)
        write_whole(path, page)
    labelled(err(), "report", str(path))
    if finished_steps(checkpoints_of(run, history.run.checkpoint.path)):
        propose(err(), f"persia predict {shlex.quote(named)} DATA -o scores.parquet")
