"""The server side of requests: each is checked, passed to a handler once, and answered at once or later."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import zmq

from persia_cli.errors import WireError
from persia_cli.wire import sockets
from persia_cli.wire.addresses import is_remote
from persia_cli.wire.frames import ByteCounts, MalformedMessage, has_arrays, message_bytes, read
from persia_cli.wire.message import Message
from persia_cli.wire.messages import Ack, Pending, Refused
from persia_cli.wire.process import memory_domain
from persia_cli.wire.shared_memory import SharedMemory
from persia_cli.wire.sockets import Context

PARKED_LIMIT = 65_536
"""Maximum number of unanswered requests that are remembered."""
GENERATED = b"\0"
"""First byte of the identities that libzmq generates for connections without one."""
ANSWERS_LIMIT = 4096
"""Maximum number of answers without arrays that are remembered."""
ANSWERS_BYTES = 16 << 20
"""Maximum total size of these answers."""
RECEIVE_LIMIT = 1024
"""Maximum number of requests handled in one call, so that timers run in between."""
RECEIVE_S = 0.1
"""Seconds after which a call handles no further request."""
LOOK_S = 0.5
"""Seconds between two checks of the log-ins."""
HELD_S = 0.05
"""Seconds after which `tick` sends acknowledgements that were held; a client repeats its request much later."""
HELD_LIMIT = 256
"""Maximum number of acknowledgements that are held for a client."""
REASON_LIMIT = 4000
"""Maximum number of characters of the reason for a refusal; the reason may quote data that the client sent."""


class Peer(NamedTuple):
    """The address of a reply: the client's identity and the number of its request."""

    identity: bytes
    request: int


Kind = TypeVar("Kind", bound=Message)


class Server:
    """A ROUTER socket, owned by one thread; `memory` is what it shares with clients of its memory domain, if anything.

    Handlers are set by `on`; other requests are refused. A handler answers with `reply`, at once or later. Until then
    its request is parked, and a repeat of it is answered with Pending. If an answer had no arrays, a repeat of the
    request gets the same answer again. If it had arrays, or is too old, the repeat goes to the handler again, which
    must recognise it by its content.

    Until the first handler is set, requests go unanswered, since a restarted replica may receive some before it is
    ready.

    `refused` counts messages that were refused, `nameless` those without an identity, `repeated` repeats that were
    answered without the handler, `dropped` replies that could not be sent (the peer will send its request again),
    `forgotten` parked requests over the limit.
    """

    def __init__(self, context: Context, address: str, name: str = "this replica") -> None:
        self.socket = sockets.router(context, address)
        self.memory: SharedMemory | None = None
        self.traffic = ByteCounts()
        self.address = sockets.bound_address(self.socket)
        self._has_remote_clients, self._domain = is_remote(self.address), f"@{memory_domain()}".encode()
        self.refused = self.nameless = self.repeated = self.dropped = self.forgotten = 0
        self._handlers: dict[type[Message], Callable[[Peer, Any], None]] = {}
        self._name = name
        self._look_s = 0.0
        self._parked: OrderedDict[Peer, None] = OrderedDict()
        self._answers: OrderedDict[Peer, tuple[Message, int]] = OrderedDict()
        self._answers_bytes = 0
        self._held: dict[bytes, list[int]] = {}
        """Requests of each client whose acknowledgements are held."""
        self._held_s = 0.0

    def on(self, kind: type[Kind], handler: Callable[[Peer, Kind], None]) -> None:
        """Pass requests of this kind to `handler` from now on."""
        self._handlers[kind] = handler

    def tick(self) -> None:
        """Count the refused clients, every LOOK_S; send what was held for too long."""
        now = time.monotonic()
        if self._held and now >= self._held_s and not self.socket.closed:
            for identity in list(self._held):
                self._send_held(identity)
        if now >= self._look_s and not self.socket.closed:
            self._look_s = now + LOOK_S
            self.socket.count_refusals(now)

    def receive(self) -> None:
        """Handle the requests that have arrived; for any content, only a handler's own failure is raised."""
        until = time.monotonic() + RECEIVE_S
        for _ in range(RECEIVE_LIMIT):
            if self.socket.closed or time.monotonic() > until:
                return
            try:
                frames = sockets.receive(self.socket)
            except MalformedMessage:
                self.refused += 1
                continue
            if frames is None:
                return
            self._handle(frames[0].bytes, frames[1:])

    def _handle(self, identity: bytes, frames: Sequence[zmq.Frame]) -> None:
        if identity.startswith(GENERATED):
            # When a peer connects again, the last messages of its old connection can arrive without its identity
            # (ROUTER_HANDOVER). No answer would reach the peer, which sends them again.
            self.nameless += 1
            with suppress(MalformedMessage):
                read(frames, self.memory)  # this borrows its loan, which ends it
            return
        try:
            received = read(frames, self.memory)
        except MalformedMessage as error:
            self.refused += 1
            if error.request is not None:
                self._send(Peer(identity, error.request), refused(error))
            return
        self.traffic.count_received(frames, received)
        peer = Peer(identity, received.request)
        if peer in self._parked:
            self.repeated += 1
            self._send(peer, Pending())
        elif peer in self._answers:
            self.repeated += 1
            self._send(peer, self._answers[peer][0])
        else:
            self._dispatch(peer, received.message)

    def _dispatch(self, peer: Peer, message: Message) -> None:
        if not self._handlers:
            return  # its role is still starting: the peer will repeat its request
        handler = self._handlers.get(type(message))
        if handler is None:
            self.reply(peer, Refused(f"{self._name} does not accept {type(message).__name__} messages"))
            return
        self._parked[peer] = None
        if len(self._parked) > PARKED_LIMIT:
            self._parked.popitem(last=False)
            self.forgotten += 1
        try:
            handler(peer, message)
        except WireError as error:
            self.refuse(peer, error)

    def refuse(self, peer: Peer, error: WireError) -> None:
        """Answer a request that is in error."""
        self.reply(peer, refused(error))

    def reply(self, peer: Peer, message: Message) -> None:
        """Answer a request; arrays of the message must not be written from now on.

        If the peer is disconnected or its queue is full, the reply is dropped and counted; the peer will repeat its
        request.
        """
        self._parked.pop(peer, None)
        self.refused += isinstance(message, Refused)
        if not has_arrays(type(message)):
            self._remember(peer, message)
        self._send(peer, message)
        if peer.identity in self._held:
            self._send_held(peer.identity)

    def acknowledge(self, peer: Peer) -> None:
        """Answer a request that its client does not wait for: together with other answers to this client, or soon."""
        self._parked.pop(peer, None)
        self._remember(peer, Ack())
        if not self._held:
            self._held_s = time.monotonic() + HELD_S
        held = self._held.setdefault(peer.identity, [])
        held.append(peer.request)
        if len(held) == HELD_LIMIT:
            self._send_held(peer.identity)

    def _send_held(self, identity: bytes) -> None:
        first, *others = self._held.pop(identity)
        self._send(Peer(identity, first), Ack(tuple(others)))

    def _remember(self, peer: Peer, message: Message) -> None:
        """Store an answer for repeats of its request, and remove the oldest ones over the limits."""
        _, replaced = self._answers.pop(peer, (None, 0))
        nbytes = message_bytes(message)
        self._answers[peer] = (message, nbytes)
        self._answers_bytes += nbytes - replaced
        while len(self._answers) > ANSWERS_LIMIT or self._answers_bytes > ANSWERS_BYTES:
            _, (_, nbytes) = self._answers.popitem(last=False)
            self._answers_bytes -= nbytes

    def _send(self, peer: Peer, message: Message) -> None:
        is_sent = sockets.send_message(
            self.socket,
            peer.request,
            message,
            self.memory if self._shares_memory(peer.identity) else None,
            to=peer.identity,
            traffic=self.traffic,
        )
        self.dropped += not is_sent

    def _shares_memory(self, identity: bytes) -> bool:
        """Return False for a client of another memory domain, whose connection comes from another machine."""
        return not self._has_remote_clients or identity.endswith(self._domain)

    def close(self) -> None:
        """Close the socket; for clients that wait, this server becomes silent."""
        self.socket.close()


def refused(error: WireError) -> Refused:
    """Return the answer to a request that is in error."""
    return Refused(str(error)[:REASON_LIMIT], error.exit_code)
