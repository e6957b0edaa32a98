"""An attacker on another host: `python far_attacker.py PUBLIC_KEY ADDRESS …`.

Sends the failure of a role to each address, without keys, with the job's public key and its own keys, and with the
keys of another job; and holds connections that send nothing, or half of a greeting. Prints a line when all this has
begun, and goes on until it is killed.
"""

import resource
import socket
import sys
import time
from contextlib import suppress

import msgspec
import zmq

HALF_OPEN = 300
"""Number of connections to each address that do not log in, at a time."""
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE"
"""The first half of the greeting of a ZeroMQ client."""
FAIL = b"\x4b"


def ways_in(public: bytes) -> list[dict[str, bytes]]:
    """Return the options of sockets that try to connect."""
    own_public, own_secret = zmq.curve_keypair()
    own = {"curve_publickey": own_public, "curve_secretkey": own_secret}
    return [
        {},
        {"plain_username": b"persia", "plain_password": b"0" * 32},
        own | {"curve_serverkey": public},
        own | {"curve_serverkey": public, "curve_publickey": public},
        own | {"curve_serverkey": own_public},
    ]


def send_failures(context: "zmq.Context[zmq.Socket[bytes]]", address: str, public: bytes) -> None:
    failure = msgspec.msgpack.encode([1, [["embedding-server", 0, 1], "sent by a stranger", 1], [], None])
    for options in ways_in(public):
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, b"embedding-server-0#1")
        for name, value in options.items():
            setattr(dealer, name, value)
        dealer.connect(address)
        dealer.send_multipart([FAIL, failure])


def half_open(address: str, said: bytes) -> socket.socket:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    connection = socket.socket()
    connection.setblocking(False)
    connection.connect_ex((host, int(port)))
    with suppress(OSError):  # not connected yet, or the port is blocked: then it sends nothing
        connection.send(said)
    return connection


def main() -> None:
    public, *addresses = sys.argv[1:]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    context = zmq.Context()
    context.setsockopt(zmq.LINGER, 0)
    for address in addresses:
        send_failures(context, address, public.encode())
    print("begun", flush=True)
    while True:
        held = [half_open(address, GREETING[: n % 12]) for address in addresses for n in range(HALF_OPEN)]
        time.sleep(1.0)
        for connection in held:
            connection.close()


if __name__ == "__main__":
    main()
