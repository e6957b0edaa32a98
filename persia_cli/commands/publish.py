"""`persia publish`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

EXAMPLES = examples(
    "persia publish runs/shop-20261121-081500                       # what the job had no time to publish",
    "persia publish runs/shop-20261121-081500 --to published/shop   # its newest checkpoint, into a new folder",
)


def publish(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="DIR", help="The folder of its versions, or its URI.", show_default="publish.to of the run"
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until standard input ends, as next to a job.", hidden=True)
    ] = False,
) -> None:
    """Publish what a job had no time for, or else its newest checkpoint, as versions for a server that follows.

    A job with publish.to does this itself while it trains.
    """
    import logging

    from persia_cli.commands.screen import err, labelled
    from persia_cli.errors import count
    from persia_cli.publish.publisher import publish_run

    if follow:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    versions, folder, last = publish_run(run, to, follow)
    newest = "none is there" if last is None else f"the newest in {folder} is {last.version}, step {last.step:,}"
    labelled(err(), "published", f"{count(versions, 'version')}; {newest}")
