"""The only module that makes sockets, and the only one that sets their options."""

import ipaddress
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import zmq

from persia_cli.errors import WireError
from persia_cli.wire.frames import MAX_FRAMES, MAX_MESSAGE_BYTES, Frame, MalformedMessage, encode
from persia_cli.wire.loans import Array, SharedMemory
from persia_cli.wire.messages import Message

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

NOBLOCK = int(zmq.NOBLOCK)
NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""As plain numbers: the enumeration's own sums and comparisons take longer than a send."""
POLLIN = int(zmq.POLLIN)
QUEUED_MESSAGES = 512
"""High-water mark of each direction of each connection."""
MAX_IPC_PATH = 107
"""Bytes of a Unix socket's path on Linux."""


def router(context: Context, address: str) -> Socket:
    """A ROUTER bound to `address`; raises WireError if that is not local or cannot be bound."""
    _check_local(address)
    socket = _make(context, zmq.ROUTER, address)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        raise WireError(f"cannot listen at {address}: {error.strerror}") from error
    return socket


def dealer(context: Context, address: str, identity: bytes) -> Socket:
    """A DEALER that connects to `address`, now or as soon as somebody listens there."""
    _check_local(address)
    socket = _make(context, zmq.DEALER, address)
    socket.setsockopt(zmq.IDENTITY, identity)
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        socket.close()
        raise WireError(f"cannot connect to {address}: {error.strerror}") from error
    return socket


def bound_address(socket: Socket) -> str:
    """Where a socket listens, with the port that the system chose."""
    return socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()  # type: ignore[union-attr]


def send(socket: Socket, frames: Sequence[Frame]) -> bool:
    """Queue a message without waiting and without copying large frames; False if the peer is gone or its queue full."""
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
    arrays: Sequence[Array] = (),
    memory: SharedMemory | None = None,
    to: bytes | None = None,
) -> bool:
    """Queue a message, for the client `to` if the socket is a server's; large arrays go by way of `memory`, if any.

    Returns as `send` does, raises as `encode` does.
    """
    loan = None if memory is None else memory.lend(arrays)
    sent = False
    try:
        frames = encode(number, message, arrays, loan)
        sent = send(socket, frames if to is None else [to, *frames])
    finally:
        if not sent and memory is not None and loan is not None:
            memory.take_back(loan)
    return sent


def receive(socket: Socket) -> list[zmq.Frame] | None:
    """The frames of the next message, None if there is none; raises MalformedMessage if they are too many."""
    # Asked first, since an exception takes longer than the question.
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
        raise MalformedMessage(f"{count} frames are no message")
    return frames


@contextmanager
def private_directory() -> Iterator[Path]:
    """A fresh directory for ipc sockets that only this user can enter, removed in the end."""
    with tempfile.TemporaryDirectory(prefix="persia-") as name:
        yield Path(name)


def ipc_address(directory: Path, name: str) -> str:
    """Address of the ipc socket `name`; raises WireError if its path is longer than the system allows."""
    path = directory / name
    if len(bytes(path)) > MAX_IPC_PATH:
        raise WireError(
            f"{path} is longer than the {MAX_IPC_PATH} characters of a Unix socket; set TMPDIR to a shorter path"
        )
    return f"ipc://{path}"


def _make(context: Context, kind: int, address: str) -> Socket:
    socket: Socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUED_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    if address.startswith("tcp://"):
        # Without these a connection that is stalled but not closed is given up late (while it begins) or never.
        socket.setsockopt(zmq.HANDSHAKE_IVL, 6_000)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 2_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 6_000)
        socket.setsockopt(zmq.HEARTBEAT_TTL, 6_000)
    return socket


def _check_local(address: str) -> None:
    """Raise WireError unless only this machine can be at the other end."""
    transport, _, place = address.partition("://")
    if transport in ("inproc", "ipc") and place and place != "*":
        if transport == "ipc":
            ipc_address(Path(place).parent, Path(place).name)
        return
    if transport != "tcp":
        raise WireError(f"{address} is no address; use inproc://NAME, ipc://PATH or tcp://127.0.0.1:PORT")
    host = place.rpartition(":")[0]
    try:
        local = ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise WireError(f"{address} is not on the loopback interface; connections are not encrypted, use 127.0.0.1")
