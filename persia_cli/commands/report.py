"""`persia report`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

EXAMPLES = examples(
    "persia report runs/criteo-20261121-081500                 # report.html in the run directory",
    "persia report runs/criteo-20261121-081500 -o criteo.html  # elsewhere",
)


def report(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Run directory of a training run, or the URI of one."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="An .html file.",
            show_default="report.html of the run; for a URI, here",
        ),
    ] = None,
) -> None:
    """Write one page about a run: curves, speed, tables, calibration.

    The page needs no other file, so that it can be sent and archived. Running and failed runs have a page too.
    """
    import shlex

    from persia_cli.commands.screen import err, labelled, propose
    from persia_cli.dashboard.report import write_report, write_report_at
    from persia_cli.jobs.run_dirs import uri_of

    written = write_report(Path(run), output) if (uri := uri_of(run)) is None else write_report_at(uri, output)
    labelled(err(), "report", str(written.path))
    if written.has_model:
        propose(err(), f"persia predict {shlex.quote(written.run)} DATA -o scores.parquet")
