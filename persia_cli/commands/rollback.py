"""`persia rollback`."""

from typing import Annotated

import typer

from persia_cli.commands.options import examples

EXAMPLES = examples(
    "persia rollback published 15      # servers go back to version 15, and stay there",
    "persia rollback published newest  # they follow the newest version again",
)
NEWEST = "newest"


def rollback(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A published folder, or its URI.")],
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help=f"Number of the version to serve; {NEWEST}: follow again.")
    ],
) -> None:
    """Serve an earlier version of a published model, until you follow the newest again.

    Training goes on meanwhile, and publishes further versions, which are not served.
    """
    from persia_cli.commands.screen import err, labelled
    from persia_cli.errors import UserError
    from persia_cli.publish.version import PINNED, chain_of, served_version, write_served
    from persia_cli.storage.addresses import printable
    from persia_cli.storage.locations import location_of, remove_file

    place = location_of(folder)
    if version == NEWEST:
        remove_file(place / PINNED)  # it may be damaged
        before = None
    elif version.isascii() and version.isdigit():
        before = served_version(place)
        chain_of(place, int(version))
        write_served(place, int(version), PINNED)
    else:
        raise UserError(f"{version} is no version; give its number, or {NEWEST}")
    now = chain_of(place, served_version(place))[-1]
    labelled(err(), "version", f"{'' if before is None else f'{before} → '}{now.version}, step {now.step:,}")
    if version != NEWEST:
        labelled(err(), "pinned", f"until persia rollback {printable(folder)} {NEWEST}")
