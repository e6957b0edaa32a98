"""`persia keys`."""

from pathlib import Path
from typing import Annotated

import typer

from persia_cli.commands.options import examples

NEW_EXAMPLES = examples("persia keys new ~/shop.keys  # then copy the file to every machine of the job")

app = typer.Typer(no_args_is_help=True, help="Make the keys of a job that spans machines.", epilog=NEW_EXAMPLES)


@app.callback()
def keys() -> None:
    """Make the keys of a job that spans machines."""


@app.command(epilog=NEW_EXAMPLES)
def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file, private to you.")],
) -> None:
    """Make a new key pair, by which the processes of a job know each other and encrypt what they say.

    Every process with the file can take part in the job, so hand it over as you would a password. The printed
    fingerprint of the public key shows only whether two files are the same.
    """
    from persia_cli.commands.screen import err, out, propose, say
    from persia_cli.wire.secret import new_keys, write_keys

    made = new_keys()
    write_keys(file, made)
    say(out(), made.fingerprint)
    propose(err(), f"persia launch-role ROLE … --key-file {file}, on every machine, or PERSIA_KEY_FILE={file}")
