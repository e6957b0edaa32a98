"""What lies between a connection and its socket: an answer leaves as a whole, and requests are read in turn."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

_ANSWER, _CONTINUE = b"HTTP/1.1 ", b"HTTP/1.1 100 "


class WholeAnswers:
    """A transport that sends the head of an answer with its body: two writes would cost two calls of the system, and
    wake the client twice."""

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        """`end` closes the connection."""
        self._transport, self._end = transport, end
        self._head = b""
        self.is_over = False
        """Whether nothing more will be sent."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data; the head of an answer with what comes next, or at the end of the answer."""
        if not self._head and data.startswith(_ANSWER) and not data.startswith(_CONTINUE):
            self._head = data
        else:
            self._transport.write(self._head + data)
            self._head = b""

    def flush(self) -> None:
        """Send a head that nothing followed."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        """Send what is held, and close the connection."""
        self.flush()
        self._end()

    def let_go(self) -> None:
        """Forget the connection, which has ended."""
        self._end = _nothing

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or will be as soon as the client has its last answer."""
        return self.is_over or self._transport.is_closing()


def _nothing() -> None:
    pass


class ReadingInTurn(FlowControl):
    """Reads nothing while requests wait for the answer of an earlier one: each would take memory."""

    def __init__(self, transport: asyncio.Transport, waiting: Any) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Read on, unless there is enough to do."""
        if not self._waiting:
            super().resume_reading()
