"""HTTP connections with bounds on the heads of requests, which uvicorn does not have.

uvicorn has no public name for its connections, so `pyproject.toml` names the version whose methods these are.

- A head, and what follows a body in place of one, has at most HEAD_BYTES. Headers after a body (trailers) are not used.
- A connection without a request at work has a deadline at any time: HEAD_S from its begin or from the first byte of a
  head until the head is complete, else IDLE_S since the last byte (uvicorn's).
- Nothing more is read while a request waits for the answer to the one before it.
"""

import asyncio
from collections.abc import Sized
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES, HEAD_S = 2**16, 5.0
"""Maximum size of a request's head, and seconds in which it must arrive."""


class _Flow(FlowControl):
    """uvicorn's pauses of a connection; reading goes on only if no request waits."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Read on, unless a request waits."""
        if not self._waiting:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's connection; a head that is too large is refused, and one that is late ends the connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_bytes = 0
        """Bytes since the last one of a body, or since the end of a head or request."""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin a connection, which must bring a request."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._drop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the parser, in parts that reveal a head beyond its bound."""
        while data and not self.transport.is_closing():
            part, data = data[: HEAD_BYTES - self._head_bytes], data[HEAD_BYTES - self._head_bytes :]
            self._head_bytes += len(part)
            super().data_received(part)
            if self._head_bytes >= HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"the head of the request is larger than {HEAD_BYTES:,} bytes")
        if self.cycle is not None and self.cycle.response_complete and not self.transport.is_closing():
            # uvicorn forgets this deadline at bytes that do not begin a request, as of a body that was refused.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        """Note the first byte of a head."""
        super().on_message_begin()
        if self._deadline is None:
            self._set_deadline()

    def on_headers_complete(self) -> None:
        """Note the end of a head."""
        self._head_bytes = 0
        self._drop_deadline()
        super().on_headers_complete()
        self.headers = []  # of trailers; those of the request are in its scope

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note the end of a body: the next byte is of a head."""
        self._head_bytes = 0
        super().on_message_complete()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(HEAD_S, self._late)

    def _late(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:  # a request is at work, and the next head may wait for it
            self._set_deadline()

    def _drop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
