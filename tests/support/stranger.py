"""A client that is no part of the job and sends messages to its sockets."""

import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import zmq

from persia_cli.wire import sockets
from persia_cli.wire.frames import Frame, decode, encode
from persia_cli.wire.message import Message, Reply, Request
from persia_cli.wire.messages import Ack, Pending, Refused
from persia_cli.wire.secret import JobSecret
from persia_cli.wire.sockets import Context

LIMIT_S = 10.0


class Stranger:
    """A DEALER connected to one replica, with the token of its job; a context manager.

    `refused` counts the calls of `is_refused`.
    """

    def __init__(self, address: str, token: bytes, name: str = "stranger") -> None:
        self._context = Context(JobSecret(token))
        self._socket = sockets.dealer(self._context, address, name.encode())
        self._number = 0
        self.refused = 0
        self._acknowledged: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.destroy(linger=0)

    def send(self, frames: Sequence[Frame]) -> None:
        """Send any frames, and expect no answer."""
        assert self._socket.poll(LIMIT_S * 1000, zmq.POLLOUT), "the queue stays full"
        self._socket.send_multipart(frames)

    def ask(self, message: Message) -> Message:
        """Send a request and return the answer to it."""
        return self.await_reply(self.begin(message))

    def ask_for(self, message: Request[Reply]) -> Reply:
        """Send a request that must not be refused, and return the answer to it."""
        reply = self.ask(message)
        assert type(reply) is message.REPLY, f"{message} was answered {reply}"
        return reply

    def begin(self, message: Message) -> int:
        """Send a request; return its number for `await_reply`."""
        self._number += 1
        self.send(encode(self._number, message))
        return self._number

    def await_reply(self, request: int) -> Message:
        """Wait for the answer to a request, and ignore all others."""
        while request not in self._acknowledged:
            assert self._socket.poll(LIMIT_S * 1000), f"no answer to request {request}"
            number, reply = decode(self._socket.recv_multipart(copy=False))
            if isinstance(reply, Ack):
                self._acknowledged |= {number, *reply.others}
            elif number == request and not isinstance(reply, Pending):
                return reply
        return Ack()

    def is_refused(self, because: str, message: Message) -> None:
        """Send a request that must be refused with a reason that contains this text."""
        reply = self.ask(message)
        assert isinstance(reply, Refused), f"{message} was answered {reply}"
        assert because in reply.reason, f"{message} was refused because {reply.reason}"
        self.refused += 1


def send_bytes(address: str, data: bytes) -> socket.socket:
    """Open a plain TCP connection, send these bytes and return it still open."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=LIMIT_S)
    connection.sendall(data)
    return connection
