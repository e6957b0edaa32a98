"""Requests of many clients: checked, handed to a handler each, answered at once or later, answered once."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import zmq

from persia_cli.errors import WireError
from persia_cli.wire import sockets
from persia_cli.wire.frames import MalformedMessage, decode
from persia_cli.wire.loans import Array, SharedMemory
from persia_cli.wire.messages import Message, Pending, Refused

PARKED_LIMIT = 65_536
"""Unanswered requests that are remembered."""
MADE_UP = b"\0"
"""First byte of the names that libzmq gives to connections without one of their own."""
ANSWERS_LIMIT = 4096
"""Answers without arrays that are remembered."""
RECEIVE_LIMIT = 1024
"""Requests taken in one call, so that timers get their turn."""


class Peer(NamedTuple):
    """Who asked, and under which number: what a reply is addressed to."""

    identity: bytes
    request: int


Handler = Callable[[Peer, Any, list[Array]], None]


class Server:
    """One ROUTER, owned by one thread; `memory` is what it shares with its clients, if it does.

    A handler answers by `reply`, now or later; until then its request is parked, and a repeat of it is answered
    Pending. A repeat of a request whose answer had no arrays gets that answer again; one whose answer had arrays, or is
    long ago, goes to the handler again, which must recognise it by its content.

    Peers are known by the names they connect under. What is left of a connection when its peer connects anew can come
    without that name (ROUTER_HANDOVER) and is passed over: no answer would reach the peer, and the peer asks again.

    `refused` counts messages that were not taken, `nameless` those passed over, `repeated` repeats that were answered
    without the handler, `dropped` replies that could not be sent (the peer will ask again), `forgotten` parked requests
    over the limit.
    """

    def __init__(
        self,
        context: sockets.Context,
        address: str,
        handlers: Mapping[type[Message], Handler],
        name: str = "this replica",
    ) -> None:
        self.socket = sockets.router(context, address)
        self.memory: SharedMemory | None = None
        self.address = sockets.bound_address(self.socket)
        self.refused = self.nameless = self.repeated = self.dropped = self.forgotten = 0
        self._handlers = handlers
        self._name = name
        self._parked: OrderedDict[Peer, None] = OrderedDict()
        self._answers: OrderedDict[Peer, Message] = OrderedDict()

    @property
    def parked(self) -> int:
        """Requests that handlers have not answered yet."""
        return len(self._parked)

    def receive(self) -> None:
        """Take the requests that have come; whatever they hold, only a handler's own failure is raised."""
        for _ in range(RECEIVE_LIMIT):
            if self.socket.closed:
                return
            try:
                frames = sockets.receive(self.socket)
            except MalformedMessage:
                self.refused += 1
                continue
            if frames is None:
                return
            self._take(frames[0].bytes, frames[1:])

    def _take(self, identity: bytes, frames: Sequence[zmq.Frame]) -> None:
        if identity.startswith(MADE_UP):
            self.nameless += 1
            with suppress(MalformedMessage):
                decode(frames, self.memory)  # what it lends is given back
            return
        try:
            number, message, arrays = decode(frames, self.memory)
        except MalformedMessage as error:
            self.refused += 1
            if error.request is not None:
                self._send(Peer(identity, error.request), Refused(str(error)))
            return
        peer = Peer(identity, number)
        if peer in self._parked:
            self.repeated += 1
            self._send(peer, Pending())
        elif peer in self._answers:
            self.repeated += 1
            self._send(peer, self._answers[peer])
        else:
            self._dispatch(peer, message, arrays)

    def _dispatch(self, peer: Peer, message: Message, arrays: list[Array]) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            self.refused += 1
            self.reply(peer, Refused(f"{self._name} takes no {type(message).__name__}"))
            return
        self._parked[peer] = None
        if len(self._parked) > PARKED_LIMIT:
            self._parked.popitem(last=False)
            self.forgotten += 1
        try:
            handler(peer, message, arrays)
        except WireError as error:
            self.refused += 1
            self.reply(peer, Refused(str(error)))

    def reply(self, peer: Peer, message: Message, arrays: Sequence[Array] = ()) -> None:
        """Answer a request; arrays must not be written from now on.

        If the peer is gone or its queue is full, the reply is dropped and counted: the peer will ask again.
        """
        self._parked.pop(peer, None)
        if not arrays:
            self._answers[peer] = message
            if len(self._answers) > ANSWERS_LIMIT:
                self._answers.popitem(last=False)
        self._send(peer, message, arrays)

    def _send(self, peer: Peer, message: Message, arrays: Sequence[Array] = ()) -> None:
        if not sockets.send_message(self.socket, peer.request, message, arrays, self.memory, to=peer.identity):
            self.dropped += 1

    def close(self) -> None:
        """Close the socket; clients that wait will call this server silent."""
        self.socket.close()
