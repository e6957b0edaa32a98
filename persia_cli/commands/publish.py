"""`persia publish`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

EXAMPLES = examples(
    "persia publish runs/shop-20261121-081500                       # what the job had no time to publish",
    "persia publish runs/shop-20261121-081500 --to published/moved  # to its folder, which has been moved",
)


def publish(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", help="The present place of its versions.", show_default="publish.to of the run"
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until standard input ends, as next to a job.", hidden=True)
    ] = False,
) -> None:
    """Publish the cuts of a run that wait, as versions for a server that follows.

    A job with publish.to does this itself while it trains.
    """
    import logging

    from persia_cli.commands.screen import err, labelled
    from persia_cli.errors import count
    from persia_cli.publish.process import publish_run

    if follow:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    versions = publish_run(run, to, follow)
    labelled(err(), "published", count(versions, "version"))
