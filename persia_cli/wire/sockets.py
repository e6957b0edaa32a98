"""ZeroMQ contexts and sockets: the only module that creates them and sets their options."""

import itertools
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import cast

import zmq
from zmq.utils.monitor import parse_monitor_message

from persia_cli.errors import WireError
from persia_cli.wire.addresses import AddressError, check_address
from persia_cli.wire.frames import MAX_FRAMES, ByteCounts, Frame, MalformedMessage, encode, parts_of
from persia_cli.wire.message import BATCH_PART, Message
from persia_cli.wire.secret import JobSecret, authenticate, is_encrypted, log_in, new_token, require_login
from persia_cli.wire.shared_memory import SharedMemory


class Context(zmq.Context[zmq.Socket[bytes]]):
    """A ZeroMQ context; only the replicas of the job have `secret`.

    If it has keys, all connections over TCP are encrypted. Without keys, addresses that other machines can reach are
    refused, unless `trusts_network`: then machines in between can read and change the traffic.
    """

    secret: JobSecret = JobSecret(b"")
    trusts_network: bool = False
    _authenticates: bool = False
    _one_at_a_time: "threading.Lock | None" = None

    def __init__(self, secret: JobSecret | None = None, trusts_network: bool = False) -> None:
        """Create the context; without a secret the job consists of this process only, and gets a random token."""
        super().__init__()
        self.secret = secret or JobSecret(new_token())
        self.trusts_network = trusts_network
        self._one_at_a_time = threading.Lock()

    @property
    def allows_remote(self) -> bool:
        """True if sockets may be reached from other machines."""
        return self.secret.keys is not None or self.trusts_network

    def guard(self, socket: zmq.Socket[bytes], address: str) -> None:
        """Restrict a socket, which is about to listen at `address`, to clients with the secret."""
        assert self._one_at_a_time is not None
        with self._one_at_a_time:
            if not self._authenticates:
                authenticate(self, self.secret)
                self._authenticates = True
        require_login(socket, self.secret.keys if is_encrypted(self.secret, address) else None)


Socket = zmq.Socket[bytes]

NOBLOCK = int(zmq.NOBLOCK)
NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""Flags as plain integers: sums and comparisons of pyzmq's enumerations take longer than a send."""
POLLIN = int(zmq.POLLIN)
QUEUED_CONNECTIONS = 1024
"""Connections that the system queues for a listening socket."""
QUEUED_MESSAGES = 512
"""High-water mark of each direction of each connection."""
WITHIN_PROCESS = "inproc://"


REFUSALS = {
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "it has another secret",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "it does not have the job's keys, or is not a process of persia",
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "it ended, or took too long, before it had logged in",
}
"""Event of libzmq -> the reason why a client was refused."""
_LOGIN_EVENTS = int(zmq.EVENT_HANDSHAKE_SUCCEEDED) + sum(REFUSALS)
LOG_S = 10.0
"""Seconds between two lines of the log about refused connections."""
_NUMBERS = itertools.count()

log = logging.getLogger(__name__)


class LoginSocket(zmq.Socket[bytes]):
    """A socket with the events of libzmq about log-ins."""

    events: Socket | None = None

    def watch(self, context: zmq.Context[Socket]) -> None:
        """Collect events from now on; before the socket listens or connects."""
        # The name has a counter and not the file descriptor, which may be reused before libzmq frees the name.
        endpoint = f"inproc://logins-{next(_NUMBERS)}"
        self.monitor(endpoint, _LOGIN_EVENTS)
        self.events = context.socket(zmq.PAIR)
        self.events.setsockopt(zmq.RCVHWM, 0)  # libzmq would stop all connections at a limit
        self.events.connect(endpoint)

    def logins(self) -> Iterator[int]:
        """Yield the events that have come since the last call."""
        while self.events is not None and self.events.poll(0):
            yield int(parse_monitor_message(self.events.recv_multipart())["event"])

    def close(self, linger: int | None = None) -> None:
        """Close the socket."""
        super().close(linger)
        if self.events is not None:
            self.events.close()


class Listener(LoginSocket):
    """A listening socket; unless it is within a process, it accepts only clients with the job's secret."""

    turned_away: int = 0
    """Number of refused clients up to the last call of `count_refusals`."""
    _unlogged: int = 0
    _next_line: float = 0.0

    def count_refusals(self, now: float) -> None:
        """Count the refused clients, and log some, but not too often."""
        why = ""
        for event in self.logins():
            if event in REFUSALS:
                why = REFUSALS[event]
                self.turned_away += 1
                self._unlogged += 1
        if why and now >= self._next_line:
            log.warning("%d connections to %s were refused, one since %s", self._unlogged, bound_address(self), why)
            self._unlogged, self._next_line = 0, now + LOG_S


class Dealer(LoginSocket):
    """A client's socket, which detects that its server does not admit it."""

    denied: bool = False
    """True if the server has another secret and reported that."""
    hung_up: int = 0
    """Number of times in a row that the server has ended a connection before the log-in was over.

    A server with other keys does so, since it cannot read the client's messages.
    """

    def follow(self) -> None:
        """Count the log-ins since the last call."""
        for event in self.logins():
            self.denied |= event == zmq.EVENT_HANDSHAKE_FAILED_AUTH
            self.hung_up = 0 if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else self.hung_up + 1


def router(context: Context, address: str) -> Listener:
    """Return a ROUTER bound to `address`; raise WireError if that must not be used without keys, or cannot be bound."""
    check_address(address, context.allows_remote)
    socket = cast(Listener, context.socket(zmq.ROUTER, socket_class=Listener))
    _set_options(socket, address)
    socket.setsockopt(zmq.BACKLOG, QUEUED_CONNECTIONS)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    try:
        if not address.startswith(WITHIN_PROCESS):
            context.guard(socket, address)
            socket.watch(context)
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        raise AddressError(f"cannot listen at {address}: {error.strerror}") from error
    return socket


def dealer(context: Context, address: str, identity: bytes) -> Dealer:
    """Return a DEALER that connects to `address`, now or as soon as a server listens there."""
    check_address(address, context.allows_remote)
    socket = cast(Dealer, context.socket(zmq.DEALER, socket_class=Dealer))
    _set_options(socket, address)
    socket.setsockopt(zmq.IDENTITY, identity)
    if not address.startswith(WITHIN_PROCESS):
        log_in(socket, context.secret, address)
        socket.watch(context)
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        socket.close()
        raise WireError(f"cannot connect to {address}: {error.strerror}") from error
    return socket


def bound_address(socket: Socket) -> str:
    """Return the address at which a socket listens, with the port that the system chose."""
    return socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()  # type: ignore[union-attr]


def send(socket: Socket, frames: Sequence[Frame]) -> bool:
    """Queue a message without waiting or copying large frames; return False for an unknown peer or a full queue."""
    try:
        for frame in frames[:-1]:
            socket.send(frame, NOBLOCK_MORE, copy=False)
        socket.send(frames[-1], NOBLOCK, copy=False)
    except zmq.ZMQError as error:
        if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            return False
        raise
    return True


def send_message(
    socket: Socket,
    number: int,
    message: Message,
    memory: SharedMemory | None = None,
    to: bytes | None = None,
    peer: str = "",
    traffic: ByteCounts | None = None,
) -> bool:
    """Queue a message, for client `to` if the socket is a server's; large arrays travel in `memory`, if given.

    `peer` is the receiver if `to` is None; `traffic` counts the message if it is sent.
    Return False if the peer is unknown or its queue is full; raise MalformedMessage as `encode` does.
    """
    parts = parts_of(message)
    loan = None if memory is None else memory.lend(parts.arrays, peer if to is None else to.decode(errors="replace"))
    sent = False
    try:
        frames = encode(number, message, loan, parts)
        sent = send(socket, frames if to is None else [to, *frames])
    finally:
        if not sent and memory is not None and loan is not None:
            memory.cancel(loan)
    if sent and traffic is not None:
        traffic.count_sent(frames, parts.arrays)
    return sent


def receive(socket: Socket) -> list[zmq.Frame] | None:
    """Return the frames of the next message, None if there is none; raises MalformedMessage if there are too many."""
    # Checked first, since an exception takes longer than this check.
    if not socket.get(zmq.EVENTS) & POLLIN:  # type: ignore[operator]
        return None
    try:
        frames = [socket.recv(NOBLOCK, copy=False)]
    except zmq.Again:
        return None
    count = 1
    more = frames[0].more
    while more:
        frame = socket.recv(copy=False)
        more = frame.more
        count += 1
        if count <= MAX_FRAMES + 1:
            frames.append(frame)
    if count > MAX_FRAMES + 1:
        raise MalformedMessage(f"a message has at most {MAX_FRAMES} frames, but this one has {count - 1}")
    return frames


def _set_options(socket: Socket, address: str) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUED_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, BATCH_PART.nbytes)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    if address.startswith("tcp://"):
        # Otherwise a stalled connection that is not closed would end late (during the handshake) or never.
        socket.setsockopt(zmq.HANDSHAKE_IVL, 6_000)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 2_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6_000)
        socket.setsockopt(zmq.HEARTBEAT_TTL, 6_000)
