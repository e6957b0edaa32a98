"""The file of the token that requests must have."""

import logging
import time
from pathlib import Path

from persia_cli.disk import read_private
from persia_cli.errors import UserError

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two checks of the file."""


def read_token(path: Path) -> bytes:
    """Return the token in a file; raises UserError unless the file is private to this user and has one."""
    token = read_private(path, "the token of requests")
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(
            f"{path} must hold a line of at least 16 characters without spaces, such as of openssl rand -hex 16"
        )
    return token.encode()


class TokenFile:
    """The token, read again when its file changes, so that a leaked one can be replaced while the server runs."""

    def __init__(self, path: Path) -> None:
        """Read the token; raises UserError."""
        self._path, self._seen, self._looked = path, _state(path), time.monotonic()
        self._token = read_token(path)

    def token(self) -> bytes:
        """Return the token that the file has now, or had within the last second."""
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            self.look()
        return self._token

    def look(self) -> None:
        """Read the file again if it has changed; an invalid file leaves the token unchanged, and is logged."""
        state = _state(self._path)
        if state == self._seen:
            return
        self._seen = state
        try:
            self._token = read_token(self._path)
            log.warning("the token of requests is now the new one in %s", self._path)
        except UserError as error:
            log.warning("%s; until then the old token of requests stays valid", error)


def _state(path: Path) -> tuple[int, ...]:
    """Return a tuple that changes with a file; empty if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_size
