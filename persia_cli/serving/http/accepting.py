"""The connections of a worker, which it takes from a listener that all workers share.

- A worker takes one connection in a turn of its event loop. A busy one has no turn, so an idle one takes the next.
- A worker that has more connections than another waits HOLD_S first, and takes one that is still there.
- Beyond its maximum it answers 503 (uvicorn's), and beyond SPARE more it leaves connections to the others.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Collection

from persia_cli.serving.http.heads import HEAD_S
from persia_cli.serving.http.shared import ServerMemory

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
        found = len(self._connections) + len(self._beginning)  # TLS is being agreed on, for instance
        self._memory.set_open(self._part, found)
        return found

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
            self._pause(HOLD_S, self._held)
        else:
            self._take()

    def _held(self) -> None:
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
