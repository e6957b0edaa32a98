"""The admission of requests: by a token, or without one by a check that keeps pages of other sites out.

A server without a token answers to every program of its machine, and a browser is one, which runs pages of any site.
Two headers that no page can choose reveal them:

- Host is the name by which the server was found. It is foreign if a site lets its own name lead to 127.0.0.1 (DNS
  rebinding). Only a server that other machines do not reach knows all its names.
- Origin is the site of the page, and a browser sends it with every request whose answer a page can read, or whose
  method is POST.
"""

import ipaddress
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from persia_cli.disk import read_private
from persia_cli.errors import UserError
from persia_cli.serving.http.refused import CLOSE, RefusedRequestError


def require_own_page(headers: Mapping[bytes, bytes], host: str, is_near: bool) -> None:
    """Raise RefusedRequestError for a request that a page of another site may have made.

    `host` is the address of the server as given; `is_near` if it is of this machine alone.
    """
    requested = headers.get(b"host", b"").decode("latin-1").lower()
    if is_near and not _is_here(requested, host.lower()):
        raise RefusedRequestError(
            421, "this server answers to localhost and 127.0.0.1 only; behind a proxy, let it send Host: localhost, or "
            "start the server with --token-file", CLOSE,
        )  # fmt: skip
    origin = headers.get(b"origin", b"").decode("latin-1").lower()
    # A proxy may have replaced Host. The header Sec-Fetch-Site, which pages cannot set, is right all the same.
    is_same_site = origin.partition("://")[2] == requested or headers.get(b"sec-fetch-site") == b"same-origin"
    if origin and not is_same_site:
        raise RefusedRequestError(403, f"this server answers to its own page, not to one of {origin[:100]}", CLOSE)


def _is_here(requested: str, host: str) -> bool:
    """Return True if a Host header names this machine."""
    name, colon, port = requested.rpartition(":")
    name = (name if colon and port.isdecimal() else requested).removeprefix("[").removesuffix("]")
    try:
        return name in ("localhost", host) or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


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
