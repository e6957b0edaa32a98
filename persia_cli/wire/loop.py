"""The poll loop of a thread over its servers, clients, timers and wakers."""

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import zmq
from numpy.typing import DTypeLike

from persia_cli.wire import sockets
from persia_cli.wire.addresses import is_remote
from persia_cli.wire.client import Client
from persia_cli.wire.frames import ByteCounts
from persia_cli.wire.message import Array, ProcessId
from persia_cli.wire.process import memory_domain
from persia_cli.wire.server import Server
from persia_cli.wire.shared_memory import SharedMemory
from persia_cli.wire.sockets import Context


class Waker:
    """An object through which any thread can end a loop's wait."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._open = True

    def wake(self) -> None:
        """Make the current or next `poll` of the loop return at once; does nothing once the loop is closed."""
        with self._lock:
            if self._open:
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Reset the waker; called by the loop."""
        os.eventfd_read(self.fd)

    def close(self) -> None:
        """Close the event file; `wake` does nothing from then on."""
        # The lock prevents a late `wake` from writing to another file that has got the same descriptor since.
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.fd)


@dataclass(slots=True)
class _Timer:
    seconds: float
    callback: Callable[[], None]
    due: float


def identity_of(name: str, process: ProcessId) -> bytes:
    """Return the name of a replica's process for the servers that it connects to."""
    return f"{name}#{process.pid}.{process.began}@{memory_domain()}".encode()


def _nothing() -> None:
    pass


class Loop:
    """A poll loop; all methods but `empty` belong to its thread."""

    def __init__(self, context: Context, name: str, clock: Callable[[], float] = time.monotonic) -> None:
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
        self.idle_s = 0.0
        """Seconds so far in which the loop waited for messages."""

    def share(self, memory: SharedMemory | None) -> None:
        """Exchange large arrays in shared memory, if not None, with processes of this memory domain.

        These are the peers of Unix sockets, and those of this domain among the ones that other machines can reach.
        """
        self._memory = memory
        for server in self._servers:
            self._share_with(server)
        for client in self._clients:
            self._share_with(client)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the loop's own memory that it shares with other processes."""
        return 0 if self._memory is None else self._memory.nbytes

    def _share_with(self, end: Server | Client) -> None:
        # On the loopback interface arrays go through sockets, since the user asked for TCP there.
        is_shared = is_remote(end.address) if isinstance(end, Server) else end.domain == memory_domain()
        end.memory = self._memory if end.address.startswith("ipc://") or is_shared else None

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an uninitialized array that is cheap to send; for any thread."""
        return np.empty(shape, dtype) if self._memory is None else self._memory.empty(shape, dtype)

    def serve(self, address: str) -> Server:
        """Serve requests at `address`; raise WireError if it is not local or is in use."""
        server = Server(self._context, address, self.name)
        self._servers.append(server)
        self._share_with(server)
        self._watch(server.socket, server.receive)
        return server

    def connect(self, address: str, peer: str, identity: bytes, retry_s: float, silence_timeout_s: float) -> Client:
        """Return a client of the server at `address`; `peer` names it in errors, `identity` is the client's."""
        client = Client(self._context, address, peer, identity, retry_s, silence_timeout_s, self._clock)
        self._clients.append(client)
        self._share_with(client)
        self._watch(client.socket, client.receive)
        return client

    def pause(self, peer: str) -> None:
        """Send nothing to this peer, which is dead, until `reconnect`."""
        for client in self._clients_of(peer):
            client.pause()

    def reconnect(self, peer: str, address: str) -> None:
        """Connect the clients of this peer, which was dead, to its new process, and repeat their requests there."""
        for client in self._clients_of(peer):
            self._unwatch(client.socket)
            client.reconnect(address)
            self._share_with(client)
            self._watch(client.socket, client.receive)

    def forget(self, peer: str, process: ProcessId) -> list[Array]:
        """Release the memory of a dead process, and end its loans; return the arrays that it had borrowed.

        Call this before `reconnect`. Processes to which it passed these arrays on may still read them.
        """
        if self._memory is None:
            return []
        borrowers = {client.address for client in self._clients_of(peer)} | {identity_of(peer, process).decode()}
        # A process of another domain may have the same process id as one whose memory is in use here.
        return self._memory.forget(borrowers, process.pid if process.domain in ("", memory_domain()) else None)

    def _clients_of(self, peer: str) -> list[Client]:
        return [client for client in self._clients if client.peer == peer]

    @property
    def counters(self) -> dict[str, int]:
        """Counts of irregular events so far; all are zero if no message is lost and shared memory has space."""
        return {
            "refused": sum(server.refused for server in self._servers),
            "turned_away": sum(server.socket.turned_away for server in self._servers),
            "nameless": sum(server.nameless for server in self._servers),
            "repeated": sum(server.repeated for server in self._servers),
            "dropped": sum(server.dropped for server in self._servers),
            "forgotten": sum(server.forgotten for server in self._servers),
            "resent": sum(client.resent for client in self._clients),
            "late": sum(client.late for client in self._clients),
            "malformed": sum(client.malformed for client in self._clients),
            "no_room": 0 if self._memory is None else self._memory.no_room,
        }

    @property
    def traffic(self) -> dict[str, ByteCounts]:
        """Bytes exchanged so far with the replicas of each role that this loop is a client of."""
        roles: dict[str, ByteCounts] = {}
        for client in self._clients:
            role = client.peer.rpartition("-")[0] or client.peer
            roles[role] = roles.get(role, ByteCounts()) + client.traffic
        return roles

    @property
    def exchanged(self) -> ByteCounts:
        """Messages and bytes exchanged so far with all clients and servers."""
        ends: list[Server | Client] = [*self._servers, *self._clients]
        return reduce(add, (end.traffic for end in ends), ByteCounts())

    @property
    def unanswered(self) -> dict[str, int]:
        """Number of requests without an answer, by the peer that has to answer them."""
        return {client.peer: client.pending for client in self._clients if client.pending}

    def every(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back about every so many seconds, first after that time; missed calls are not repeated."""
        self._timers.append(_Timer(seconds, callback, self._clock() + seconds))

    def waker(self) -> Waker:
        """Return a waker of this loop for other threads."""
        waker = Waker()
        self._wakers.append(waker)
        self._watch(waker.fd, waker.clear)
        return waker

    def poll(self, timeout_s: float) -> None:
        """Run one round: wait up to `timeout_s` for messages, handle them, repeat due requests, run due timers."""
        wait_ms, begin_s = self._wait_ms(timeout_s), self._clock()
        sources = self._poller.poll(wait_ms)
        self.idle_s += self._clock() - begin_s
        for source, _ in sources:
            # A handler may have reconnected the client of another source.
            self._receivers.get(source, _nothing)()
        for client in self._clients:
            client.tick()
        for server in self._servers:
            server.tick()
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
        # Rounded up: a round that ends a fraction of a millisecond early would only cause an idle round.
        return max(0, math.ceil((due - now) * 1000))

    def _watch(self, source: sockets.Socket | int, receive: Callable[[], None]) -> None:
        self._receivers[source] = receive
        self._poller.register(source, zmq.POLLIN)

    def _unwatch(self, source: sockets.Socket) -> None:
        del self._receivers[source]
        self._poller.unregister(source)

    def close(self) -> None:
        """Close all servers, clients and wakers of this loop; shared memory is freed with the last array on it."""
        self.share(None)
        for server in self._servers:
            server.close()
        for client in self._clients:
            client.close()
        for waker in self._wakers:
            waker.close()
