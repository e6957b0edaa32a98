"""HTTP connections with bounds on the heads of requests, which uvicorn does not have.

uvicorn has no public name for its connections, so `pyproject.toml` names the version whose methods these are.
A connection without a request at work has a deadline at any time: IDLE_S while nothing arrives after an answer
(uvicorn's), HEAD_S from its begin or from the first byte of a head until the head is complete.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES, HEAD_S = 2**16, 5.0
"""Maximum size of a request's head, and seconds in which it must arrive."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's connection; a head that is too large is refused, and one that is late ends the connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head, self._head_bytes = True, 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin a connection, which must bring a request."""
        super().connection_made(transport)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._drop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the parser: those of a head only up to its bound."""
        while self._in_head and data:
            part, data = data[: HEAD_BYTES - self._head_bytes], data[HEAD_BYTES - self._head_bytes :]
            self._head_bytes += len(part)
            super().data_received(part)
            if self.transport.is_closing():
                return
            if self._in_head and self._head_bytes >= HEAD_BYTES:
                self.send_400_response(f"the head of the request is larger than {HEAD_BYTES:,} bytes")
                return
        if data:
            super().data_received(data)
        if (self.cycle is None or self.cycle.response_complete) and self._deadline is None:
            self._set_deadline()

    def on_headers_complete(self) -> None:
        """Note the end of a head."""
        self._in_head = False
        self._drop_deadline()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note the end of a body: the next byte is of a head."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(HEAD_S, self.transport.abort)

    def _drop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
