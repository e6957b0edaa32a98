"""The authentication of clients by the token of the job, and protection against a flood of connections.

Clients log in with ZMTP's PLAIN mechanism. libzmq asks a thread of this module if the password is right (ZAP, RFC 27 of
ZeroMQ), and reads no message of a client that has not logged in. A client has HANDSHAKE_S to log in. Until then its
connection takes a file descriptor of this process, so at most NEW_CONNECTIONS are accepted in that time. After these,
the port drops packets for a moment; the system of a client that connects just then retries by itself. Connections that
send nothing are not accepted at all (see `listen`).
"""

import ctypes
import hmac
import itertools
import os
import resource
import socket as system
import struct
import threading
import time
from collections import deque

import zmq
from zmq.utils.monitor import parse_monitor_message

from persia_cli.wire.addresses import listen

USER = b"persia"
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
"""Address at which libzmq sends its authentication requests."""
HANDSHAKE_S = 4.0
NEW_CONNECTIONS = 256
"""Largest number of connections that one socket accepts within HANDSHAKE_S."""
FILES_FRACTION = 4
"""New connections may take at most one of so many of the files that the process may open."""
RECHECK_MS = 100

_NUMBERS = itertools.count()
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_EVENTS = int(zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_MONITOR_STOPPED)


def password_of(token: bytes) -> bytes:
    """Return the password of clients, which is the token in hexadecimal."""
    return token.hex().encode()


class PortGuard:
    """The connection counters of one listening socket, and the block of its port while too many connections are new.

    The authenticator's thread writes the counters; any thread may read them. `port` is the system's listening socket,
    None unless it is TCP; it is closed with the guard.
    """

    def __init__(self, port: system.socket | None, most: int) -> None:
        self._port = port
        self._most = most
        self._lock = threading.Lock()
        self._blocked = False
        self._recent: deque[float] = deque()
        self._accepted = self._logged_in = 0

    @property
    def turned_away(self) -> int:
        """Number of connections that ended before they logged in; those of the last HANDSHAKE_S do not count yet."""
        return max(0, self._accepted - self._logged_in - len(self._recent))

    def record(self, event: int, now: float) -> None:
        """Count an event of the socket."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._logged_in += 1
        elif event == zmq.EVENT_ACCEPTED:
            self._accepted += 1
            self._recent.append(now)

    def update(self, now: float) -> bool:
        """Block or unblock the port, by the number of new connections; returns True if another call is needed soon."""
        while self._recent and self._recent[0] < now - HANDSHAKE_S:
            self._recent.popleft()
        self._set_blocked(len(self._recent) >= self._most)
        return bool(self._recent)

    def _set_blocked(self, blocked: bool) -> None:
        with self._lock:
            if self._port is None or blocked == self._blocked:
                return
            if blocked:
                # A packet filter on the port (see socket(7)) with one instruction, which drops all packets.
                instruction = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
                program = struct.pack("HL", 1, ctypes.addressof(instruction))
                self._port.setsockopt(system.SOL_SOCKET, _SO_ATTACH_FILTER, program)
            else:
                self._port.setsockopt(system.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            self._blocked = blocked

    def close(self) -> None:
        """Close the port."""
        with self._lock:
            if self._port is not None:
                self._port.close()
                self._port = None


class Authenticator:
    """The authentication thread of one context; it ends with `close`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], token: bytes) -> None:
        self._context = context
        self._password = password_of(token)
        self._requests = context.socket(zmq.REP)
        self._requests.setsockopt(zmq.LINGER, 0)
        self._requests.bind(ZAP_ENDPOINT)
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._new: deque[tuple[zmq.Socket[bytes], PortGuard]] = deque()
        self._guards: dict[zmq.Socket[bytes], PortGuard] = {}
        self._closing = False
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="authentication", daemon=True)
        self._thread.start()

    def guard(self, socket: zmq.Socket[bytes], address: str) -> PortGuard:
        """Require clients of a socket to log in; for a tcp address, also open its port for listening.

        The socket's own thread calls this before it binds the socket. Raises OSError if it cannot listen at the port.
        """
        socket.setsockopt(zmq.PLAIN_SERVER, 1)
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
        port = None
        if address.startswith("tcp://"):
            port = listen(address)
            socket.setsockopt(zmq.USE_FD, os.dup(port.fileno()))
        guard = PortGuard(port, min(NEW_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // FILES_FRACTION))
        # The name has a counter and not the file descriptor, which may be reused before libzmq frees the name.
        events = socket.get_monitor_socket(_EVENTS, f"inproc://connections-{next(_NUMBERS)}")
        self._new.append((events, guard))
        os.eventfd_write(self._wakeup, 1)
        return guard

    def close(self) -> None:
        """End the thread and wait for it."""
        self._closing = True
        os.eventfd_write(self._wakeup, 1)
        self._thread.join()
        os.close(self._wakeup)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._requests, zmq.POLLIN)
        poller.register(self._wakeup, zmq.POLLIN)
        soon = False
        while True:
            ready = dict(poller.poll(RECHECK_MS if soon else None))
            if self._closing:
                break
            if self._wakeup in ready:
                os.eventfd_read(self._wakeup)
                while self._new:
                    events, guard = self._new.popleft()
                    self._guards[events] = guard
                    poller.register(events, zmq.POLLIN)
            if self._requests in ready:
                self._answer()
            now = time.monotonic()
            for events in [each for each in self._guards if each in ready]:
                if not self._follow(events, now):
                    poller.unregister(events)
            soon = max((guard.update(now) for guard in self._guards.values()), default=False)
        for socket in (self._requests, *self._guards, *(events for events, _ in self._new)):
            socket.close()

    def _answer(self) -> None:
        """Answer one authentication request."""
        version, request, *_, user, password = [*self._requests.recv_multipart(), b"", b""][:8]
        right = hmac.compare_digest(password, self._password) and user == USER
        status, text = (b"200", b"") if right else (b"400", b"the token is not that of this job")
        self._requests.send_multipart([version, request, status, text, b"", b""])

    def _follow(self, events: zmq.Socket[bytes], now: float) -> bool:
        """Record the events of a socket; returns False once it is closed."""
        while events.poll(0):
            event = int(parse_monitor_message(events.recv_multipart())["event"])
            if event == zmq.EVENT_MONITOR_STOPPED:
                del self._guards[events]
                events.close()
                return False
            self._guards[events].record(event, now)
        return True
