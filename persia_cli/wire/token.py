"""The token of a job: the secret by which its replicas recognise each other, in a file that only its user can read."""

import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from persia_cli.errors import UserError, WireError
from persia_cli.wire.private_file import read_private, write_private

TOKEN_BYTES = 16
"""128 bits, which cannot be guessed."""
TOKEN = "token"
"""Name of the file."""
WHAT = "the job's token"
POLL_S = 0.05
MESSAGE_AFTER_S = 1.0


def new_token() -> bytes:
    """Return a new random token."""
    return secrets.token_bytes(TOKEN_BYTES)


def write_token(path: Path, token: bytes) -> None:
    """Write a token atomically to a new file; raises UserError if the file exists or cannot be written."""
    write_private(path, token.hex(), WHAT)


def read_token(path: Path) -> bytes:
    """Return the token in a file; raises UserError if there is none, or if other users could read it."""
    text = read_private(path, WHAT)
    if not re.fullmatch(f"[0-9a-f]{{{2 * TOKEN_BYTES}}}", text):
        raise UserError(f"{path} does not contain a token; give the file that the job's coordinator wrote")
    return bytes.fromhex(text)


def await_file(path: Path, limit_s: float, say: Callable[[str], None]) -> None:
    """Wait for the file of a token; raises WireError if it does not exist after `limit_s`."""
    begin, said = time.monotonic(), False
    while not path.exists():
        waited = time.monotonic() - begin
        if waited > limit_s:
            raise WireError(
                f"the token file {path} does not exist after {limit_s:g} s; the job's coordinator writes it, so check "
                "that the coordinator runs"
            )
        if waited > MESSAGE_AFTER_S and not said:
            said = True
            say(f"waiting for {path}, which the job's coordinator writes")
        time.sleep(POLL_S)


def remove_token(path: Path) -> None:
    """Remove the token file of a job that has ended."""
    with suppress(OSError):
        path.unlink()
