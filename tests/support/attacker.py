"""Another user of the machine who attacks a job over tcp: `python attacker.py UID`, ports on standard input.

Sends a failure, garbage and huge messages to each port that a line names, and holds idle connections to it, with new
ones for those that are closed, until standard input ends. At the end it prints counts as JSON.
"""

import json
import os
import resource
import select
import socket
import sys
from contextlib import suppress

import msgspec
import zmq
import zmq.utils.garbage  # which zmq imports late, when another user may not read this folder any more

MAX_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
PORTS = 4
IDLE = min(1200, (MAX_FILES - 400) // PORTS)
"""Number of idle connections to each port: the process's limit, less its other files."""
HUGE = 15 << 20
FAIL, HELLO, HEARTBEAT = b"\x4b", b"\x40", b"\x49"
SERVER = ["embedding-server", 0, 1]


def hostile_messages() -> list[list[bytes]]:
    """A failure of a role, deeply nested lists, and a greeting that is too long."""
    fail = msgspec.msgpack.encode([1, [SERVER, f"sent by uid {os.getuid()}", 1], [], None])
    figures = b"\x94\xcb" + bytes(8) + b"\x00\x80\x93\x80\x80\x81\xa1a\xdd"
    lists = b"\x94\x02\x94\x93\xa1r\x00\x00\xa0\xcb" + bytes(8) + figures
    lists += (HUGE).to_bytes(4, "big") + b"\x90" * HUGE
    return [
        [FAIL, fail],
        *[[HEARTBEAT, lists + b"\x90\xc0"]] * 3,
        *[[HELLO, b"\x94\x03\x97\xdb" + (HUGE).to_bytes(4, "big") + b"a" * HUGE]] * 3,
        [b""] * 500,
    ]


class Attack:
    """The attack on one port."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], port: int, messages: list[list[bytes]]) -> None:
        self._address = ("127.0.0.1", port)
        self._idle: list[socket.socket] = []
        self.opened = self.sent = 0
        self._dealers = []
        for password in (None, b"0" * 32):
            dealer = context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.IDENTITY, b"embedding-server-0#1")
            if password is not None:
                dealer.setsockopt(zmq.PLAIN_USERNAME, b"persia")
                dealer.setsockopt(zmq.PLAIN_PASSWORD, password)
            dealer.connect(f"tcp://127.0.0.1:{port}")
            for frames in messages:
                dealer.send_multipart(frames, copy=False)
                self.sent += 1
            self._dealers.append(dealer)
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(500), b"\xff" + bytes(8) + b"\x7f\x03\x01PLAIN"):
            with suppress(OSError):
                self._open().send(garbage)

    def _open(self) -> socket.socket:
        made = socket.socket()
        made.settimeout(1.0)
        with suppress(OSError):
            made.connect(self._address)
        made.setblocking(False)
        self._idle.append(made)
        return made

    def keep_open(self) -> None:
        """Open the missing idle connections, without waiting for any."""
        self._idle = [each for each in self._idle if not self._is_closed(each)]
        while len(self._idle) < IDLE:
            made = socket.socket()
            made.setblocking(False)
            made.connect_ex(self._address)
            self._idle.append(made)
            self.opened += 1

    @staticmethod
    def _is_closed(connection: socket.socket) -> bool:
        try:
            closed = connection.recv(64, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            closed = True
        if closed:
            connection.close()
        return closed


def main() -> None:
    """Become the other user and attack until standard input ends."""
    other = int(sys.argv[1])
    os.setgroups([])
    os.setgid(other)
    os.setuid(other)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_FILES, MAX_FILES))
    attacks: list[Attack] = []
    messages = hostile_messages()
    with zmq.Context() as context:
        context.setsockopt(zmq.LINGER, 0)
        while True:
            for attack in attacks:
                attack.keep_open()
            if select.select([sys.stdin], [], [], 0.05)[0]:
                lines = os.read(sys.stdin.fileno(), 4096).decode().split()
                if not lines:
                    break
                attacks += [Attack(context, int(port), messages) for port in lines]
        print(json.dumps([[attack.sent, attack.opened] for attack in attacks]))
        context.destroy(linger=0)


if __name__ == "__main__":
    main()
