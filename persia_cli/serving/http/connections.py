"""The connections of a worker: taken from a listener that all workers share, with bounds on the heads of requests.

- A worker takes one connection in a turn of its event loop. A busy one has no turn, so an idle one takes the next.
- A worker that has more connections than another waits HOLD_S first, and takes one that is still there.
- Beyond its maximum it answers 503 (uvicorn's), and beyond SPARE more it leaves connections to the others.
- A head, and what follows a body in place of one, has at most HEAD_BYTES. Headers after a body (trailers) are not used.
- A connection without a request at work has a deadline at any time: HEAD_S from its begin or from the first byte of a
  head until the head is complete, else IDLE_S since the last byte (uvicorn's).
- Nothing more is read while a request waits for the answer to the one before it.

uvicorn has no bounds on heads, and no public name for its connections, so `pyproject.toml` names the version whose
methods these are.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Collection, Sized
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from persia_cli.serving.http.shared import ServerMemory

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


HOLD_S, FULL_S = 0.002, 0.1
"""Seconds before a worker with more connections than others takes one, and before one with too many looks again."""
SPARE = 64


class Acceptor:
    """Takes connections; used by one event loop."""

    def __init__(
        self, listener: socket.socket, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None, most: int,
        connections: Collection[object], memory: ServerMemory, part: int,
    ) -> None:  # fmt: skip
        """Begin. `make` returns the protocol of a connection, which adds itself to `connections`; `part` of the memory
        is this worker's.
        """  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._listener, self._make, self._tls, self._most = listener, make, tls, most
        self._connections, self._memory, self._part = connections, memory, part
        self._beginning: set[asyncio.Task[None]] = set()
        self._hold: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self.note()
        self._watch()

    def note(self) -> int:
        """Note in the memory how many connections there are now; returns their number."""
        open_now = len(self._connections) + len(self._beginning)  # TLS is being agreed on, for instance
        self._memory.set_open(self._part, open_now)
        return open_now

    def close(self) -> None:
        """Take no more."""
        self._pause(None)
        self._memory.set_open(self._part, None)
        self._listener.close()

    def _watch(self) -> None:
        self._loop.add_reader(self._listener, self._offered)

    def _pause(self, seconds: float | None, then: Callable[[], None] | None = None) -> None:
        self._loop.remove_reader(self._listener)
        if self._hold is not None:
            self._hold.cancel()
        self._hold = None if seconds is None else self._loop.call_later(seconds, then or self._watch)

    def _offered(self) -> None:
        mine = self.note()
        if mine >= self._most + SPARE:
            self._pause(FULL_S)
        elif mine > self._memory.least_open():
            self._pause(HOLD_S, self._after_wait)
        else:
            self._take()

    def _after_wait(self) -> None:
        self._watch()
        self._take()

    def _take(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # another took it, or the client has left
            return
        except OSError:  # of too many open files, or too little memory
            self._pause(FULL_S)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._begin(connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        self.note()

    async def _begin(self, connection: socket.socket) -> None:
        limit = None if self._tls is None else HEAD_S
        try:
            await self._loop.connect_accepted_socket(
                self._make, connection, ssl=self._tls, ssl_handshake_timeout=limit, ssl_shutdown_timeout=limit
            )
        except OSError:  # ssl.SSLError too
            connection.close()
