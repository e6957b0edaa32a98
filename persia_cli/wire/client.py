"""Requests to one peer: numbered, repeated under the same number until answered, given up when the peer is silent."""

import itertools
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from persia_cli.errors import WireError
from persia_cli.wire import sockets
from persia_cli.wire.frames import MalformedMessage, decode
from persia_cli.wire.loans import Array, SharedMemory
from persia_cli.wire.messages import Message, Pending, Refused

MAX_WAIT_S = 4.0
"""Longest time between two sendings of a request."""
TRIES = 4
"""Sendings that a peer must leave unanswered, at least, to be called silent."""
RECEIVE_LIMIT = 1024
"""Replies taken in one call, so that timers get their turn."""

OnReply = Callable[[Message, list[Array]], None]


@dataclass(slots=True)
class _Request:
    """A request without an answer; `silent_s` adds up the waits in which the peer said nothing at all."""

    number: int
    message: Message
    arrays: Sequence[Array]
    on_reply: OnReply | None
    waiting_for: str
    wait_s: float
    due: float
    heard: int
    silent_s: float = 0.0


class Client:
    """One DEALER to one peer, owned by one thread.

    `memory` is what it shares with the peer, if it does; it may be set later. `retry_s` and `silence_timeout_s` may be
    changed; requests that wait take them over when they are due. `resent` counts repeated sendings, `late` replies to
    what was answered before, `malformed` replies that are none.
    """

    def __init__(
        self,
        context: sockets.Context,
        address: str,
        peer: str,
        identity: bytes,
        retry_s: float,
        silence_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.socket = sockets.dealer(context, address, identity)
        self.memory: SharedMemory | None = None
        self.address = address
        self.peer = peer
        self.resent = self.late = self.malformed = 0
        self.retry_s = retry_s
        self.silence_timeout_s = silence_timeout_s
        self._clock = clock
        # A client that succeeds one of the same identity must not be given the answers to the other's requests.
        self._numbers = itertools.count(secrets.randbits(48))
        self._requests: dict[int, _Request] = {}
        self._heard = 0
        self._unreadable = ""
        self._due = math.inf

    @property
    def pending(self) -> int:
        """Requests without an answer."""
        return len(self._requests)

    @property
    def due(self) -> float:
        """Time of the clock at which `tick` has something to do, infinite if nothing is pending."""
        return self._due if self._requests else math.inf

    def request(
        self,
        message: Message,
        arrays: Sequence[Array] = (),
        on_reply: OnReply | None = None,
        waiting_for: str = "",
    ) -> None:
        """Send a request and keep it until it is answered; never waits.

        Arrays are kept alive and must not be written until `on_reply` is called, by `receive`, with the reply and its
        arrays. `waiting_for` says in errors what the request is about.
        """
        number = next(self._numbers)
        wait_s = min(self.retry_s, self.silence_timeout_s)
        due = self._clock() + wait_s
        request = _Request(
            number, message, arrays, on_reply, waiting_for or type(message).__name__, wait_s, due, self._heard
        )
        # A full queue is no error: the request goes out when it is due again.
        self._send(request)
        self._requests[number] = request
        self._due = min(self._due, due)

    def _send(self, request: _Request) -> None:
        sockets.send_message(self.socket, request.number, request.message, request.arrays, self.memory)

    def receive(self) -> None:
        """Take the replies that have come; raises WireError if the peer refused a request."""
        for _ in range(RECEIVE_LIMIT):
            if self.socket.closed:
                return
            try:
                frames = sockets.receive(self.socket)
                if frames is None:
                    return
                number, reply, arrays = decode(frames, self.memory)
            except MalformedMessage as error:
                self.malformed += 1
                self._unreadable = f"; what it sent last could not be read: {error}"
                continue
            self._take(number, reply, arrays)

    def _take(self, number: int, reply: Message, arrays: list[Array]) -> None:
        request = self._requests.get(number)
        if request is not None and not isinstance(reply, (Pending, Refused, request.message.REPLY or Message)):
            self.malformed += 1
            return
        self._heard += 1
        self._unreadable = ""
        if request is None:
            self.late += 1
            return
        if isinstance(reply, Pending):
            return
        del self._requests[number]
        if isinstance(reply, Refused):
            raise WireError(f"{self.peer} at {self.address} refused {request.waiting_for}: {reply.reason}")
        if request.on_reply is not None:
            request.on_reply(reply, arrays)

    def tick(self) -> None:
        """Send again what is due; raises WireError if the peer has been silent for too long.

        Silence is added up wait by wait, so time in which this thread did not listen does not count against the peer.
        """
        now = self._clock()
        if now < self._due:
            return
        for request in self._requests.values():
            if now >= request.due:
                self._send_again(request, now)
        self._due = min((request.due for request in self._requests.values()), default=math.inf)

    def _send_again(self, request: _Request, now: float) -> None:
        if request.heard != self._heard:
            request.heard, request.silent_s = self._heard, 0.0
        else:
            request.silent_s += request.wait_s
        if request.silent_s >= self.silence_timeout_s:
            raise WireError(
                f"{self.peer} at {self.address} has not answered for {request.silent_s:g} s "
                f"(waiting for {request.waiting_for}){self._unreadable}"
            )
        longest_s = max(self.retry_s, min(MAX_WAIT_S, self.silence_timeout_s / TRIES))
        request.wait_s = min(2 * request.wait_s, longest_s, self.silence_timeout_s - request.silent_s)
        request.due = now + request.wait_s
        self.resent += 1
        self._send(request)

    def close(self) -> None:
        """Close the socket; pending requests are forgotten and no reply is reported any more."""
        self._requests.clear()
        self.socket.close()
