"""The guard of a listening socket: counts connections and refusals, and holds off a flood of connections.

A client has HANDSHAKE_S to log in. Until then its connection takes a file descriptor of this process, so at most
NEW_CONNECTIONS are accepted in that time. After these, the port drops packets for a moment; the system of a client that
connects just then retries by itself. Connections that send nothing are not accepted at all (see `listen`).
"""

import ctypes
import logging
import os
import socket as system
import struct
import sys
import threading
from collections import deque
from contextlib import suppress

import zmq

HANDSHAKE_S = 4.0
NEW_CONNECTIONS = 256
"""Largest number of connections that one socket accepts within HANDSHAKE_S."""
LOG_S = 10.0
"""Seconds between two lines of the log about refused connections."""
EVENTS = int(
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_MONITOR_STOPPED
)
"""What a guard wants to hear of its socket."""
REASONS = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it has another secret",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "it does not have the job's keys, or is no process of persia",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "it ended, or took too long, before it had logged in",
}
UNKNOWN = "an address that is gone: it is no process of persia"

log = logging.getLogger(__name__)

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27


class PortGuard:
    """The connection counters of one listening socket, and the block of its port while too many connections are new.

    The authenticator's thread writes the counters; any thread may read them. `port` is the system's listening socket,
    None unless it is TCP; it is closed with the guard. `address` is for the log.
    """

    def __init__(self, port: system.socket | None, most: int, address: str) -> None:
        self._port, self._most, self._address = port, most, address
        self._lock = threading.Lock()
        self._blocked = False
        self._recent: deque[float] = deque()
        self._accepted = self._logged_in = 0
        self._clients: dict[int, str] = {}
        """File descriptor of each connection -> the client's address."""
        self._reason = ""
        """Why the connection is refused whose end is the next event."""
        self._told = 0
        """Connections that were turned away and are in the log."""
        self._refused = UNKNOWN
        """Address and reason of the last refusal of which both are known."""
        self._next_line = 0.0

    @property
    def turned_away(self) -> int:
        """Number of connections that ended before they logged in; those of the last HANDSHAKE_S do not count yet."""
        return max(0, self._accepted - self._logged_in - len(self._recent))

    def record(self, event: int, value: int, now: float) -> None:
        """Count an event of the socket; of a connection's begin and end, the value is its file descriptor."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._logged_in += 1
        elif event == zmq.EVENT_ACCEPTED:
            self._accepted += 1
            self._recent.append(now)
            self._clients[value] = client_of(value)
        elif event == zmq.EVENT_DISCONNECTED:
            client = self._clients.pop(value, "")
            # One thread of libzmq handles all connections, so the end comes right after the reason.
            if self._reason:
                if client:
                    self._refused = f"{client}: {self._reason}"
                self._reason = ""
        else:
            self._reason = REASONS.get(zmq.Event(event), "")

    def update(self, now: float) -> bool:
        """Block or unblock the port, by the number of new connections, and log refusals, but not too often.

        Returns True if another call is needed soon.
        """
        while self._recent and self._recent[0] < now - HANDSHAKE_S:
            self._recent.popleft()
        self._set_blocked(len(self._recent) >= self._most)
        untold = self.turned_away - self._told
        if untold and now >= self._next_line:
            log.warning("%d connections to %s were refused, one from %s", untold, self._address, self._refused)
            self._told += untold
            untold, self._next_line, self._refused = 0, now + LOG_S, UNKNOWN
        return bool(self._recent or untold)

    def _set_blocked(self, blocked: bool) -> None:
        with self._lock:
            if self._port is None or blocked == self._blocked:
                return
            try:
                self._filter(self._port, blocked)
            except OSError as error:  # systems that imitate Linux may have no filters
                log.warning("a flood of connections to %s cannot be held off: %s", self._address, error)
                self._most = sys.maxsize
            self._blocked = blocked

    @staticmethod
    def _filter(port: system.socket, blocked: bool) -> None:
        """Have the system drop all packets that come to a port, or no more; raises OSError."""
        if not blocked:
            port.setsockopt(system.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            return
        # A packet filter on the port (see socket(7)) with one instruction, which drops all packets.
        instruction = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
        program = struct.pack("HL", 1, ctypes.addressof(instruction))
        port.setsockopt(system.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def close(self) -> None:
        """Close the port."""
        with self._lock:
            if self._port is not None:
                self._port.close()
                self._port = None


def client_of(descriptor: int) -> str:
    """Return the address at the other end of a connection; empty where it has ended, or is of this machine."""
    with suppress(OSError):
        # A copy: libzmq owns the descriptor, and may close it at any moment, so that it may be something else by now.
        copy = os.dup(descriptor)
        try:
            connection = system.socket(fileno=copy)
        except OSError:
            os.close(copy)
            raise
        with connection:
            client = connection.getpeername()
        return str(client[0]) if isinstance(client, tuple) else "this machine"
    return ""
