"""`persia rollback`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

EXAMPLES = examples(
    "persia rollback published 15      # servers go back to version 15, and stay there",
    "persia rollback published newest  # they follow the newest version again",
)
NEWEST = "newest"


def rollback(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A published folder.")],
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help=f"Number of the version to serve; {NEWEST}: follow again.")
    ],
) -> None:
    """Serve an earlier version of a published model, until you follow the newest again.

    Training goes on meanwhile, and publishes further versions, which are not served.
    """
    from persia_cli.commands.screen import err, labelled
    from persia_cli.errors import UserError
    from persia_cli.publish.version import chain_of, choosing, read_current, versions_of, write_current

    before = read_current(folder)
    if version != NEWEST and not (version.isascii() and version.isdigit()):
        raise UserError(f"{version} is no version; give its number, or {NEWEST}")
    with choosing(folder):
        number = max(versions_of(folder), default=0) if version == NEWEST else int(version)
        chosen = chain_of(folder, number)[-1]
        write_current(folder, number, pinned=version != NEWEST)
    labelled(err(), "version", f"{before.version} → {number}, step {chosen.step:,}")
    if version != NEWEST:
        labelled(err(), "pinned", f"until persia rollback {folder} {NEWEST}")
