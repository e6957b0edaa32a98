"""The guard before each answer: known host names, the token, and what a browser may load."""

import base64
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from persia_cli.serving.http.token_file import TokenFile

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

RULES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": RULES,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
ASK = {"www-authenticate": 'Basic realm="persia: the token as password", charset="UTF-8"'}


class Guard:
    """An ASGI application that passes on requests of those who may ask."""

    def __init__(self, app: App, token: TokenFile | None) -> None:
        """Without a token, only requests by a name of this machine are passed on."""
        self._app, self._token = app, token

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, with the headers that bind the browser."""
        from starlette.responses import PlainTextResponse

        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *ours]
            await send(message)

        if self._token is None and not _is_here(headers.get("host", "")):
            text = "this server answers to localhost and 127.0.0.1 only\n"
            await PlainTextResponse(text, 421)(scope, receive, guarded)
        elif self._token is not None and not hmac.compare_digest(_given(headers), self._token.token()):
            text = "this server wants its token as password\n"
            await PlainTextResponse(text, 401, ASK)(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)


def _is_here(host: str) -> bool:
    """Return True if a Host header names this machine; another site's page can ask by its own name (DNS rebinding)."""
    name, colon, port = host.rpartition(":")
    name = name if colon and port.isdecimal() else host
    try:
        return name.lower() == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _given(headers: dict[str, str]) -> bytes:
    """Return the token of a request, its password with any user name; empty without one."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2] if scheme.lower() == "basic" else b""
    except ValueError:
        return b""
