"""The check that keeps pages of other sites out of a server without a token.

Such a server answers to every program of its machine, and a browser is one, which runs pages of any site. Two headers
that no page can choose reveal them:

- Host is the name by which the server was found. It is foreign if a site lets its own name lead to 127.0.0.1 (DNS
  rebinding). Only a server that other machines do not reach knows all its names.
- Origin is the site of the page, and a browser sends it with every request whose answer a page can read, or whose
  method is POST.
"""

import ipaddress
from collections.abc import Mapping

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
