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
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of a training run.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="A .html or .png file.", show_default="report.html of the run"
        ),
    ] = None,
) -> None:
    """Show a run in one page: loss, AUC, speed, staleness, tables, calibration.

    The page holds all it needs, so that it can be sent and kept. A run that is still going, or has failed, has one too.
    """
    import time

    from persia_cli.commands.describe import model_words, training_words
    from persia_cli.commands.screen import err, labelled
    from persia_cli.errors import UserError
    from persia_cli.observe.history import read_history
    from persia_cli.observe.report_page import report_page
    from persia_cli.observe.report_picture import report_picture
    from persia_cli.store.manifest import finished_steps

    history = read_history(run)
    path = output or run / "report.html"
    if path.suffix not in (".html", ".png"):
        raise UserError(f"{path.name}: a report is a page or a picture; let the name end in .html or .png")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.absolute().parent}; make it first")
    now = time.time()
    if path.suffix == ".png":
        report_picture(history, path, now)
    else:
        words = {"model": model_words(history.run), "steps": training_words(history.run)}
        page = report_page(history, words, now)
        part = path.with_name(f"{path.name}.part")
        part.write_text(page, encoding="utf-8")
        part.replace(path)
    labelled(err(), "report", str(path))
    if finished_steps(run):
        labelled(err(), "next", f"persia predict {run} DATA -o scores.parquet")
