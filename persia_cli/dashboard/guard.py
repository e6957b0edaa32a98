"""The guard before each answer: the server's own page, the token, and what a browser may load."""

import base64
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from persia_cli.serving.http.admission import TokenFile, require_own_page
from persia_cli.serving.http.refused import RefusedRequestError

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

    def __init__(self, app: App, token: TokenFile | None, host: str) -> None:
        """Without a token, only requests of this server's own page are passed on; it listens at `host`."""
        self._app, self._token, self._host = app, token, host

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, with the headers that bind the browser."""
        from starlette.responses import PlainTextResponse

        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *ours]
            await send(message)

        if self._token is None:
            try:
                require_own_page(headers, self._host, is_near=True)
            except RefusedRequestError as error:
                await PlainTextResponse(f"{error}\n", error.status)(scope, receive, guarded)
                return
        if self._token is not None and not hmac.compare_digest(_given(headers), self._token.token()):
            text = "this server wants its token as password\n"
            await PlainTextResponse(text, 401, ASK)(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)


def _given(headers: dict[bytes, bytes]) -> bytes:
    """Return the token of a request, its password with any user name; empty without one."""
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2] if scheme.lower() == b"basic" else b""
    except ValueError:
        return b""
