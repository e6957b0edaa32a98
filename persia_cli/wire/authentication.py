"""The authentication of clients by the secret of the job.

Clients log in with ZMTP's CURVE mechanism over TCP if the job has keys, and else with PLAIN and the token as password.
libzmq asks a thread of this module if the key or the password is right (ZAP, RFC 27 of ZeroMQ), and reads no message of
a client that has not logged in. By itself libzmq would admit any key to a CURVE server where no such thread answers; so
each server demands an answer (ZAP_ENFORCE_DOMAIN), and where the thread does not answer any more nobody is admitted.
"""

import hmac
import itertools
import logging
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Container

import zmq
from zmq.utils.monitor import parse_monitor_message

from persia_cli.wire.addresses import listen
from persia_cli.wire.keys import JobKeys
from persia_cli.wire.port_guard import EVENTS, HANDSHAKE_S, NEW_CONNECTIONS, PortGuard
from persia_cli.wire.secret import JobSecret

USER = b"persia"
DOMAIN = b"persia"
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
"""Address at which libzmq sends its authentication requests."""
FILES_FRACTION = 4
"""New connections may take at most one of so many of the files that the process may open."""
RECHECK_MS = 100

_NUMBERS = itertools.count()

log = logging.getLogger(__name__)


def is_encrypted(secret: JobSecret, address: str) -> bool:
    """Return True if connections to this address use the job's keys."""
    return secret.keys is not None and address.startswith("tcp://")


def log_in(socket: zmq.Socket[bytes], secret: JobSecret, address: str) -> None:
    """Have a client's socket, which is about to connect to `address`, prove that it has the secret."""
    if secret.keys is not None and is_encrypted(secret, address):
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret.keys.secret)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, secret.keys.public)
        socket.setsockopt(zmq.CURVE_SERVERKEY, secret.keys.public)
    else:
        socket.setsockopt(zmq.PLAIN_USERNAME, USER)
        socket.setsockopt(zmq.PLAIN_PASSWORD, _password_of(secret.token))


def require_login(socket: zmq.Socket[bytes], keys: JobKeys | None) -> None:
    """Have a server's socket demand that its clients log in."""
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
    if keys is None:
        socket.setsockopt(zmq.PLAIN_SERVER, 1)
    else:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


def _password_of(token: bytes) -> bytes:
    return token.hex().encode()


class Authenticator:
    """The authentication thread of one context; it ends with `close`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], secret: JobSecret) -> None:
        self._context, self._secret = context, secret
        self._password = _password_of(secret.token)
        self._requests = context.socket(zmq.REP)
        self._requests.setsockopt(zmq.LINGER, 0)
        self._requests.bind(ZAP_ENDPOINT)
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._new: deque[tuple[zmq.Socket[bytes], PortGuard]] = deque()
        self._guards: dict[zmq.Socket[bytes], PortGuard] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="authentication", daemon=True)
        self._thread.start()

    def guard(self, socket: zmq.Socket[bytes], address: str) -> PortGuard:
        """Require clients of a socket to log in; for a tcp address, also open its port for listening.

        The socket's own thread calls this before it binds the socket. Raises OSError if it cannot listen at the port.
        """
        require_login(socket, self._secret.keys if is_encrypted(self._secret, address) else None)
        port = None
        if address.startswith("tcp://"):
            port = listen(address)
            socket.setsockopt(zmq.USE_FD, os.dup(port.fileno()))
            address = "tcp://{}:{}".format(*port.getsockname())
        most = min(NEW_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // FILES_FRACTION)
        guard = PortGuard(port, most, address)
        # The name has a counter and not the file descriptor, which may be reused before libzmq frees the name.
        events = socket.get_monitor_socket(EVENTS, f"inproc://connections-{next(_NUMBERS)}")
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
            try:
                soon = self._heed(ready, poller)
            except Exception as error:  # an end of this thread would be one of all connections
                soon = True
                self._admit_nobody(poller, error)
        self._close_all()

    def _heed(self, ready: Container[object], poller: zmq.Poller) -> bool:
        """Do what has to be done now; returns True if there is more to do soon."""
        if self._wakeup in ready:
            os.eventfd_read(self._wakeup)
            while self._new:
                events, guard = self._new.popleft()
                self._guards[events] = guard
                poller.register(events, zmq.POLLIN)
        now = time.monotonic()
        for events in [each for each in self._guards if each in ready]:
            if not self._follow(events, now):
                poller.unregister(events)
        if self._requests in ready:
            self._answer()
        return max((guard.update(now) for guard in self._guards.values()), default=False)

    def _admit_nobody(self, poller: zmq.Poller, error: Exception) -> None:
        """Answer no requests any more, after an error.

        What happens at the ports is followed all the same: once there is too much of it that nobody has taken, libzmq
        waits, and with it all that goes through this process.
        """
        if not self._requests.closed:
            log.error("authentication has failed, so nobody else gets into this process: %r", error)
            poller.unregister(self._requests)
            self._requests.close()

    def _close_all(self) -> None:
        for socket in (self._requests, *self._guards, *(events for events, _ in self._new)):
            socket.close()

    def _answer(self) -> None:
        """Answer one authentication request."""
        version, request, domain, _, _, mechanism, *proof = [*self._requests.recv_multipart(), b"", b""][:8]
        right = domain == DOMAIN and self._is_right(mechanism, proof)
        status, text = (b"200", b"") if right else (b"400", b"the secret is not that of this job")
        self._requests.send_multipart([version, request, status, text, b"", b""])

    def _is_right(self, mechanism: bytes, proof: list[bytes]) -> bool:
        if mechanism == b"CURVE":
            # The handshake has proved that the client has the secret key to this public one.
            keys = self._secret.keys
            return keys is not None and hmac.compare_digest(proof[0], keys.public_bytes)
        return mechanism == b"PLAIN" and hmac.compare_digest(proof[1], self._password) and proof[0] == USER

    def _follow(self, events: zmq.Socket[bytes], now: float) -> bool:
        """Record the events of a socket; returns False once it is closed."""
        while events.poll(0):
            event = parse_monitor_message(events.recv_multipart())
            if event["event"] == zmq.EVENT_MONITOR_STOPPED:
                del self._guards[events]
                events.close()
                return False
            self._guards[events].record(int(event["event"]), event["value"], now)
        return True
