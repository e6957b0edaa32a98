"""Requests to one peer: numbered, repeated with the same number until answered, and ended if the peer is silent."""

import itertools
import logging
import math
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from persia_cli.errors import WireError
from persia_cli.wire import sockets
from persia_cli.wire.frames import ByteCounts, MalformedMessage, Received, read
from persia_cli.wire.message import Message, Reply, Request
from persia_cli.wire.messages import Ack, Pending, Refused
from persia_cli.wire.process import split_domain
from persia_cli.wire.shared_memory import SharedMemory
from persia_cli.wire.sockets import Context

log = logging.getLogger(__name__)

MAX_WAIT_S = 4.0
"""Longest time between two sends of a request."""
TRIES = 4
"""Smallest number of unanswered sends before a peer counts as silent."""
ATTEND_MS = 50
LOOK_S = 0.5
"""Seconds between two checks of the log-ins."""
HANG_UPS = 5
"""Number of lost connections in a row before a warning: a server that ends also drops a new connection once."""
RECEIVE_LIMIT = 1024
"""Maximum number of replies handled in one call, so that timers run in between."""


class RefusedError(WireError):
    """A refusal of a request by its peer, with the exit code that the peer gave."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(slots=True)
class _Unanswered:
    """A request without an answer; `silent_s` is the sum of the waits in which the peer sent nothing at all."""

    number: int
    message: Request[Any]
    on_reply: Callable[[Any], None] | None
    waiting_for: str
    wait_s: float
    due: float
    arrivals: int
    silent_s: float = 0.0


class Client:
    """A DEALER socket to one peer, owned by one thread.

    `domain` is the memory domain of the peer, if its address contains one. `memory` is the memory shared with the peer,
    if any; it may be set later. `retry_s` and `silence_timeout_s` may be changed; pending requests use the new values
    when they are due. `resent` counts repeated sends, `late` replies to requests that were answered before, `malformed`
    replies that cannot be read or do not fit their request.
    """

    def __init__(
        self,
        context: Context,
        address: str,
        peer: str,
        identity: bytes,
        retry_s: float,
        silence_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open = partial(sockets.dealer, context, identity=identity)
        self.address, self.domain = split_domain(address)
        self.socket = self._open(self.address)
        self.memory: SharedMemory | None = None
        self.traffic = ByteCounts()
        self.peer = peer
        self.resent = self.late = self.malformed = 0
        self.retry_s = retry_s
        self.silence_timeout_s = silence_timeout_s
        self._clock = clock
        # Random, since a client with the identity of an earlier one must not get answers to the other's requests.
        self._numbers = itertools.count(secrets.randbits(48))
        self._requests: dict[int, _Unanswered] = {}
        self._arrivals = 0
        self._unreadable = ""
        self._due = math.inf
        self._look = -math.inf
        self._has_warned = self._is_paused = False

    @property
    def pending(self) -> int:
        """Requests without an answer."""
        return len(self._requests)

    @property
    def has_answered(self) -> bool:
        """True once the peer has sent anything."""
        return self._arrivals > 0

    @property
    def due(self) -> float:
        """Time of the clock at which `tick` has work to do, infinite if nothing is pending or the client is paused."""
        return self._due if self._requests and not self._is_paused else math.inf

    def request(
        self,
        message: Request[Reply],
        on_reply: Callable[[Reply], None] | None = None,
        waiting_for: str = "",
    ) -> None:
        """Send a request and repeat it until it is answered; never wait.

        Its arrays are retained and must not be written until `receive` calls `on_reply` with the reply.
        `waiting_for` describes the request in error messages.
        """
        number = next(self._numbers)
        wait_s = min(self.retry_s, self.silence_timeout_s)
        due = self._clock() + wait_s
        request = _Unanswered(
            number, message, on_reply, waiting_for or type(message).__name__, wait_s, due, self._arrivals
        )
        # A full queue is not an error: the request is sent again when it is due.
        self._send(request)
        self._requests[number] = request
        self._due = min(self._due, due)

    def _send(self, request: _Unanswered) -> None:
        if not self._is_paused:
            sockets.send_message(
                self.socket,
                request.number,
                request.message,
                self.memory,
                peer=self.address,
                traffic=self.traffic,
            )

    def pause(self) -> None:
        """Send nothing until `reconnect`: the peer is dead, and another process takes its place."""
        self._is_paused = True

    def reconnect(self, address: str) -> None:
        """Connect to the peer's new process, at this address, and send every request without an answer again."""
        self.socket.close()
        self.address, self.domain = split_domain(address)
        self.socket, self._is_paused = self._open(self.address), False
        self._repeat_all()

    def _repeat_all(self) -> None:
        """Send every request without an answer again, to a process that has received none of them."""
        for request in self._requests.values():
            request.wait_s = min(self.retry_s, self.silence_timeout_s)
            request.due, request.arrivals, request.silent_s = self._clock() + request.wait_s, self._arrivals, 0.0
            self.resent += 1
            self._send(request)
        self._due = min((request.due for request in self._requests.values()), default=math.inf)

    def receive(self) -> None:
        """Handle the replies that have arrived; raises WireError if the peer refused a request."""
        for _ in range(RECEIVE_LIMIT):
            if self.socket.closed:
                return
            try:
                frames = sockets.receive(self.socket)
                if frames is None:
                    return
                received = read(frames, self.memory)
                self.traffic.count_received(frames, received)
            except MalformedMessage as error:
                self.malformed += 1
                self._unreadable = f"; its last message could not be read: {error}"
                continue
            self._handle(received)

    def _handle(self, received: Received) -> None:
        reply = received.message
        self._answer(received.request, reply)
        if isinstance(reply, Ack):
            for number in reply.others:
                self._answer(number, reply)

    def _answer(self, number: int, reply: Message) -> None:
        request = self._requests.get(number)
        if request is not None and not isinstance(reply, (Pending, Refused, request.message.REPLY or Message)):
            self.malformed += 1
            return
        self._arrivals += 1
        self._unreadable = ""
        if request is None:
            self.late += 1
            return
        if isinstance(reply, Pending):
            # The peer has the request, so from now on only a lost answer is a reason to send it again.
            request.wait_s = max(request.wait_s, self._longest_s)
            return
        del self._requests[number]
        if isinstance(reply, Refused):
            text = f"{self.peer} at {self.address} refused {request.waiting_for}: {reply.reason}"
            raise RefusedError(text, reply.exit_code)
        if request.on_reply is not None:
            request.on_reply(reply)

    def tick(self) -> None:
        """Send due requests again; raises WireError if the peer was silent for too long or has another secret.

        Silence is the sum of single waits, so time in which this thread did not listen does not count.
        """
        now = self._clock()
        if now >= self._look:
            # Also for an idle client: the events would accumulate.
            self._look = now + LOOK_S
            self.socket.follow()
            if self._hung_up and not self._has_warned:
                self._has_warned = True
                log.warning("%s at %s has not answered yet%s", self.peer, self.address, self._hung_up)
        if now < self._due or self._is_paused:
            return
        if self._requests and self.socket.denied:
            raise WireError(
                f"{self.peer} at {self.address} belongs to a job with another secret; give every role of a job the "
                "--token-file, or --key-file, of its coordinator"
            )
        for request in self._requests.values():
            if now >= request.due:
                self._send_again(request, now)
        self._due = min((request.due for request in self._requests.values()), default=math.inf)

    def _send_again(self, request: _Unanswered, now: float) -> None:
        if request.arrivals != self._arrivals:
            request.arrivals, request.silent_s = self._arrivals, 0.0
        else:
            request.silent_s += request.wait_s
        if request.silent_s >= self.silence_timeout_s:
            raise WireError(
                f"{self.peer} at {self.address} has not answered for {request.silent_s:g} s "
                f"(waiting for {request.waiting_for}){self._unreadable}{self._hung_up}"
            )
        request.wait_s = min(2 * request.wait_s, self._longest_s, self.silence_timeout_s - request.silent_s)
        request.due = now + request.wait_s
        self.resent += 1
        self._send(request)

    def attend(self, is_enough: Callable[[], bool], seconds: float) -> bool:
        """Do nothing else until `is_enough`, for at most `seconds`; return its last result."""
        deadline = time.monotonic() + seconds
        with suppress(WireError):
            while not is_enough() and time.monotonic() < deadline:
                self.tick()
                if self.socket.poll(ATTEND_MS):
                    self.receive()
        return is_enough()

    @property
    def _hung_up(self) -> str:
        """A clause about a server that has never admitted this client; empty for others."""
        if self._arrivals or self.socket.hung_up < HANG_UPS:
            return ""
        return "; it hangs up on every connection: give it and this role the same --token-file or --key-file"

    @property
    def _longest_s(self) -> float:
        """Longest time that a request waits before it is sent again."""
        return max(self.retry_s, min(MAX_WAIT_S, self.silence_timeout_s / TRIES))

    def close(self) -> None:
        """Close the socket and forget pending requests; no reply is handled from now on."""
        self._requests.clear()
        self.socket.close()
