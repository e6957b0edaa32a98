"""The token of a job: the secret by which its replicas recognise each other, in a file that only its user can read."""

import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from persia_cli.disk import rename
from persia_cli.errors import UserError, WireError

TOKEN_BYTES = 16
"""128 bits, which cannot be guessed."""
TOKEN = "token"
"""Name of the file."""
POLL_S = 0.05
MESSAGE_AFTER_S = 1.0


def new_token() -> bytes:
    """Return a new random token."""
    return secrets.token_bytes(TOKEN_BYTES)


def write_token(path: Path, token: bytes) -> None:
    """Write a token atomically to a new file; raises UserError if the file exists or cannot be written."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(file, "w", encoding="ascii") as draft_file:
                draft_file.write(f"{token.hex()}\n")
            rename(draft, path, overwrite=False)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write the job's token to {path}: {error.strerror}") from error


def read_token(path: Path) -> bytes:
    """Return the token in a file; raises UserError if there is none, or if other users could read it."""
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            rights = os.fstat(file.fileno())
            text = file.read(1024).strip()
    except OSError as error:
        raise UserError(f"cannot read the job's token from {path}: {error.strerror}") from error
    if rights.st_uid != os.geteuid() or stat.S_IMODE(rights.st_mode) & 0o077:
        raise UserError(f"other users can access the job's token in {path}; make the file private: chmod 600 {path}")
    if not re.fullmatch(f"[0-9a-f]{{{2 * TOKEN_BYTES}}}", text):
        raise UserError(f"{path} does not contain a token; give the file that the job's coordinator wrote")
    return bytes.fromhex(text)


def await_token(path: Path, limit_s: float, say: Callable[[str], None]) -> bytes:
    """Return the token in a file; waits for the file, and raises WireError if it does not exist after `limit_s`."""
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
    return read_token(path)


def remove_token(path: Path) -> None:
    """Remove the token file of a job that has ended."""
    with suppress(OSError):
        path.unlink()
