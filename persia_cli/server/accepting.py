"""How workers share the connections that come to their socket: each takes about as many as the others have."""

import asyncio
import mmap
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from persia_cli.server.connection import BEYOND, HEAD_S, MOST_CONNECTIONS, BoundedConnection

WAIT_S, LONGEST_WAIT_S = 0.001, 0.01
"""For which a worker leaves a new connection to the others for each one that it has more than the least of them."""
AT_ONCE = 16
"""Connections that it takes at most when nobody else did; the first time one, and then twice as many each time."""
FAILED_S = 0.1
"""Seconds until the next try where the system gives no connection, as to a process with too many files."""
_GONE = 2**31 - 1
"""In place of the connections of a worker that there is not."""


class ConnectionCounts:
    """How many connections each worker has, in memory that all of them share."""

    def __init__(self, descriptor: int, workers: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, 4 * workers)
        self._counts = memoryview(self._memory).cast("i")

    @classmethod
    def new(cls, workers: int) -> Self:
        """Return the counts of workers that have not begun."""
        descriptor = os.memfd_create("persia-connections")
        os.ftruncate(descriptor, 4 * workers)
        found = cls(descriptor, workers)
        for number in range(workers):
            found.forget(number)
        return found

    def note(self, number: int, connections: int) -> int:
        """Note how many a worker has; returns how many more that is than the least of them."""
        self._counts[number] = connections
        return connections - min(self._counts)

    def of_others(self, number: int) -> list[int]:
        """Return how many the other workers have."""
        return [count for other, count in enumerate(self._counts) if other != number]

    def forget(self, number: int) -> None:
        """Note that a worker has ended."""
        self._counts[number] = _GONE

    def close(self) -> None:
        """Give back the memory."""
        self._counts.release()
        self._memory.close()
        os.close(self.descriptor)


class Accepting:
    """Takes connections from a socket that others take from too.

    A worker that has more than another leaves a new one to that for a moment, and then takes it, as the other may
    compute, or hang.
    """

    def __init__(
        self, listener: socket.socket, context: ssl.SSLContext | None, connect: Callable[[], BoundedConnection],
        counts: ConnectionCounts, number: int, connections: Callable[[], int],
    ) -> None:  # fmt: skip
        """Begin; `connections` tells how many this worker, one of the `counts`, has."""
        self._listener, self._context, self._connect = listener, context, connect
        self._counts, self._number, self._connections = counts, number, connections
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.TimerHandle | None = None
        self._at_once = 1
        self._of_others: list[int] = []
        """What the others had when this worker began to wait for them, or the last time."""
        listener.setblocking(False)
        self.note()
        self._loop.add_reader(listener, self._on_ready)

    def close(self) -> None:
        """Take no more."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._loop.remove_reader(self._listener)

    def note(self) -> int:
        """Tell the others how many connections there are, also when one has ended; returns the lead over the least."""
        return self._counts.note(self._number, self._connections() + len(self._beginning))

    def _on_ready(self) -> None:
        if (lead := self.note()) <= 0:
            self._take(1)
        else:
            self._pause(min(lead * WAIT_S, LONGEST_WAIT_S))

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._waiting = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._waiting = None
        self._loop.add_reader(self._listener, self._on_ready)
        # One that only computes takes some meanwhile; of one that hangs nothing is to be waited for.
        others = self._counts.of_others(self._number)
        self._at_once = min(2 * self._at_once, AT_ONCE) if others == self._of_others else 1
        self._of_others = others
        self._take(self._at_once)

    def _take(self, most: int) -> None:
        for _ in range(most):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._pause(FAILED_S)
                return
            if self._connections() + len(self._beginning) > MOST_CONNECTIONS + BEYOND:
                connection.close()
                continue
            task = self._loop.create_task(self._begin(connection))
            self._beginning.add(task)
            task.add_done_callback(self._on_begun)
            self.note()

    def _on_begun(self, task: "asyncio.Task[None]") -> None:
        self._beginning.discard(task)
        self.note()

    async def _begin(self, connection: socket.socket) -> None:
        limit = None if self._context is None else HEAD_S
        with suppress(OSError):  # of one who leaves, or does not encrypt
            await self._loop.connect_accepted_socket(
                self._connect, connection, ssl=self._context, ssl_handshake_timeout=limit
            )
