"""A delay line in front of a server: it forwards messages, in order, as a link with a delay and a bandwidth does.

`python -m persia_cli.bench.delay_line PARENT DELAY_MS MBIT_PER_S SECRET_FILE FRONT BACK [FRONT …]` is a process of
delay lines; each is a separate link.
"""

import math
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import zmq

from persia_cli.engines.processes import die_with, python_module
from persia_cli.errors import RoleError
from persia_cli.wire import sockets
from persia_cli.wire.frames import Frame, MalformedMessage
from persia_cli.wire.secret import read_secret
from persia_cli.wire.sockets import Context

GIVE_UP_S = 1.0
"""Seconds after which a message is dropped if its receiver does not take it."""
IDLE_S = 0.1
TAKEN_AT_ONCE = 256
"""Largest number of messages taken from one socket in a row, so that due messages need not wait."""
READY = b"ready\n"


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """The effect of a link on messages: the delay, and the bandwidth in each direction."""

    delay_ms: float
    mbit_per_s: float = math.inf

    @property
    def label(self) -> str:
        """The link as text, for people."""
        limit = f", {self.mbit_per_s:g} Mbit/s" if self.is_limited else ""
        return f"{self.delay_ms:g} ms{limit}"

    @property
    def is_limited(self) -> bool:
        """True if the bandwidth is limited."""
        return not math.isinf(self.mbit_per_s)


class _Direction:
    """The messages in flight in one direction of a link, in order."""

    def __init__(self, link: NetworkLink) -> None:
        self._delay_s, self._bytes_per_s = link.delay_ms / 1e3, link.mbit_per_s * 1e6 / 8
        self._sent = -math.inf
        """When the last byte of the last message has entered the link."""
        self.messages: deque[tuple[float, sockets.Socket, Sequence[Frame]]] = deque()
        """When each is due, the socket to send it by, and its frames."""

    def add(self, now: float, socket: sockets.Socket, frames: Sequence[Frame]) -> None:
        """Add a message that has come now."""
        self._sent = max(self._sent, now) + sum(map(len, frames)) / self._bytes_per_s
        self.messages.append((self._sent + self._delay_s, socket, frames))


class DelayLine:
    """A proxy: clients connect to `front`, and their messages go to the server at `back` under their own identities.

    Any number of messages can wait at a time. One that its receiver does not take for a second is dropped: it has
    exited, or its queue is full. Belongs to one thread.
    """

    def __init__(
        self,
        context: Context,
        front: str,
        back: str,
        link: NetworkLink,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context, self._back, self._clock = context, back, clock
        self._router = sockets.router(context, front)
        self.address = sockets.bound_address(self._router)
        self._dealers: dict[bytes, sockets.Socket] = {}
        self.files = [_file_of(self._router)]
        """File descriptors that become readable when there may be work to do."""
        self._requests, self._replies = _Direction(link), _Direction(link)

    @property
    def wait_s(self) -> float:
        """Seconds until the next message is due; `IDLE_S` at most."""
        dues = [way.messages[0][0] for way in (self._requests, self._replies) if way.messages]
        return min(IDLE_S, max(0.0, min(dues) - self._clock())) if dues else IDLE_S

    def step(self) -> bool:
        """Take new messages and forward due ones; returns True if there were any."""
        received = self._receive(self._router, self._delay_request)
        for identity, dealer in self._dealers.items():
            received |= self._receive(dealer, partial(self._delay_reply, identity))
        forwarded = [self._forward(way) for way in (self._requests, self._replies)]
        return any(forwarded) or received

    def _delay_request(self, frames: Sequence[zmq.Frame]) -> None:
        identity = frames[0].bytes
        if identity not in self._dealers:
            self._dealers[identity] = sockets.dealer(self._context, self._back, identity)
            self.files.append(_file_of(self._dealers[identity]))
        self._requests.add(self._clock(), self._dealers[identity], frames[1:])

    def _delay_reply(self, identity: bytes, frames: Sequence[zmq.Frame]) -> None:
        self._replies.add(self._clock(), self._router, [identity, *frames])

    def _receive(self, socket: sockets.Socket, delay: Callable[[Sequence[zmq.Frame]], None]) -> bool:
        for number in range(TAKEN_AT_ONCE):
            try:
                frames = sockets.receive(socket)
            except MalformedMessage:
                continue
            if frames is None:
                return number > 0
            delay(frames)
        return True

    def _forward(self, way: _Direction) -> bool:
        forwarded = False
        while way.messages and way.messages[0][0] <= self._clock():
            due, socket, frames = way.messages[0]
            if not sockets.send(socket, frames) and self._clock() < due + GIVE_UP_S:
                break
            way.messages.popleft()
            forwarded = True
        return forwarded

    def close(self) -> None:
        """Close all sockets; messages that still wait are lost."""
        self._router.close()
        for dealer in self._dealers.values():
            dealer.close()


def _file_of(socket: sockets.Socket) -> int:
    return int(socket.getsockopt(zmq.FD))


def run_lines(lines: Sequence[DelayLine]) -> None:
    """Run all lines in one thread, with waits of microsecond resolution, until the process is killed."""
    while True:
        # A ZeroMQ file descriptor is edge-triggered: all messages must be taken before waiting for the next change.
        moved = [line.step() for line in lines]
        if any(moved):
            continue
        files = [file for line in lines for file in line.files]
        select.select(files, [], [], min(line.wait_s for line in lines))


@contextmanager
def delay_process(fronts: Mapping[str, str], link: NetworkLink, parent: int, secret_file: Path) -> Iterator[None]:
    """Run delay lines from each front address to its back while the context lasts; the process ends with `parent`."""
    arguments = [str(parent), str(link.delay_ms), str(link.mbit_per_s), str(secret_file)]
    arguments += [address for pair in fronts.items() for address in pair]
    command = [*python_module("persia_cli.bench.delay_line"), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        if process.stdout.readline() != READY:
            raise RoleError(f"the process that delays messages ended with {process.wait()}")
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main(arguments: Sequence[str]) -> None:
    """Forward messages until killed."""
    parent, delay_ms, mbit_per_s, secret_file, *addresses = arguments
    link = NetworkLink(float(delay_ms), float(mbit_per_s))
    die_with(int(parent))
    context = Context(read_secret(Path(secret_file)))
    lines = [
        DelayLine(context, front, back, link) for front, back in zip(addresses[0::2], addresses[1::2], strict=True)
    ]
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    run_lines(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
