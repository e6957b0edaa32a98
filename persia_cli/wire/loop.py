"""One thread's poll loop over its servers, clients, timers and wakers."""

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import zmq
from numpy.typing import DTypeLike

from persia_cli.wire import sockets
from persia_cli.wire.client import Client
from persia_cli.wire.loans import Array, SharedMemory
from persia_cli.wire.messages import Message
from persia_cli.wire.server import Handler, Server


class Waker:
    """Ends a loop's wait from any thread."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._open = True

    def wake(self) -> None:
        """Let the current or next `poll` of the loop return at once; does nothing once the loop is closed."""
        with self._lock:
            if self._open:
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Forget the wakes so far; called by the loop."""
        os.eventfd_read(self.fd)

    def close(self) -> None:
        """Close the event file; wakes do nothing from then on."""
        # The lock keeps a late wake from writing to a file that has been given the same number since.
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.fd)


@dataclass(slots=True)
class _Timer:
    seconds: float
    callback: Callable[[], None]
    due: float


class Loop:
    """Everything that one thread waits for; all methods but `Waker.wake` and `empty` belong to that thread."""

    def __init__(self, context: sockets.Context, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._context = context
        self._clock = clock
        self._poller = zmq.Poller()
        self._receivers: dict[sockets.Socket | int, Callable[[], None]] = {}
        self._servers: list[Server] = []
        self._clients: list[Client] = []
        self._timers: list[_Timer] = []
        self._wakers: list[Waker] = []
        self._memory: SharedMemory | None = None

    def share(self, memory: SharedMemory | None) -> None:
        """Pass large arrays through memory shared with the processes at the other ends of Unix sockets, if not None."""
        self._memory = memory
        for server in self._servers:
            self._share_with(server)
        for client in self._clients:
            self._share_with(client)

    @property
    def shared_bytes(self) -> int:
        """Memory that the loop shares with other processes, as far as it is its own."""
        return 0 if self._memory is None else self._memory.nbytes

    def _share_with(self, end: Server | Client) -> None:
        end.memory = self._memory if end.address.startswith("ipc://") else None

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array with any content that is cheap to send, for any thread."""
        return np.empty(shape, dtype) if self._memory is None else self._memory.empty(shape, dtype)

    def serve(self, address: str, handlers: Mapping[type[Message], Handler]) -> Server:
        """Answer requests at `address`; raises WireError if it is not local or taken."""
        server = Server(self._context, address, handlers, self.name)
        self._servers.append(server)
        self._share_with(server)
        self._watch(server.socket, server.receive)
        return server

    def connect(self, address: str, peer: str, identity: bytes, retry_s: float, silence_timeout_s: float) -> Client:
        """A client of the server at `address`; `peer` is its name in errors, `identity` this end's name there."""
        client = Client(self._context, address, peer, identity, retry_s, silence_timeout_s, self._clock)
        self._clients.append(client)
        self._share_with(client)
        self._watch(client.socket, client.receive)
        return client

    @property
    def counters(self) -> dict[str, int]:
        """What was not as it should be so far; all zero on an undisturbed wire, and where shared memory has room."""
        return {
            "refused": sum(server.refused for server in self._servers),
            "nameless": sum(server.nameless for server in self._servers),
            "repeated": sum(server.repeated for server in self._servers),
            "dropped": sum(server.dropped for server in self._servers),
            "forgotten": sum(server.forgotten for server in self._servers),
            "resent": sum(client.resent for client in self._clients),
            "late": sum(client.late for client in self._clients),
            "malformed": sum(client.malformed for client in self._clients),
            "no_room": 0 if self._memory is None else self._memory.no_room,
        }

    def every(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back about every so many seconds, first after that time; calls that are missed are not made up for."""
        self._timers.append(_Timer(seconds, callback, self._clock() + seconds))

    def waker(self) -> Waker:
        """Something with which other threads end this loop's wait."""
        waker = Waker()
        self._wakers.append(waker)
        self._watch(waker.fd, waker.clear)
        return waker

    def poll(self, timeout_s: float) -> None:
        """One round: wait for something up to `timeout_s`, take what has come, repeat what is due, run timers."""
        for source, _ in self._poller.poll(self._wait_ms(timeout_s)):
            self._receivers[source]()
        for client in self._clients:
            client.tick()
        now = self._clock()
        for timer in self._timers:
            if now >= timer.due:
                timer.due = now + timer.seconds
                timer.callback()

    def _wait_ms(self, timeout_s: float) -> int:
        now = self._clock()
        due = min(
            now + timeout_s,
            min((timer.due for timer in self._timers), default=now + timeout_s),
            min((client.due for client in self._clients), default=now + timeout_s),
        )
        # Rounded up: a round that ends a fraction early would only be followed by an idle one.
        return max(0, math.ceil((due - now) * 1000))

    def _watch(self, source: sockets.Socket | int, receive: Callable[[], None]) -> None:
        self._receivers[source] = receive
        self._poller.register(source, zmq.POLLIN)

    def close(self) -> None:
        """Close every server, client and waker of this loop; shared memory goes with the last array on it."""
        self.share(None)
        for server in self._servers:
            server.close()
        for client in self._clients:
            client.close()
        for waker in self._wakers:
            waker.close()
