"""The ZeroMQ context of one job, whose sockets authenticate with the job's secret."""

import threading

import zmq

from persia_cli.wire.authentication import authenticate, is_encrypted, require_login
from persia_cli.wire.secret import JobSecret, new_secret


class Context(zmq.Context[zmq.Socket[bytes]]):
    """A ZeroMQ context; `secret` is what all replicas of the job know, and nobody else.

    If it has keys, all connections over TCP are encrypted. Without, addresses that other machines can reach are
    refused, unless `trusts_network`: then what passes there can be read and changed by whoever is in between.
    """

    secret: JobSecret = JobSecret(b"")
    trusts_network: bool = False
    _authenticates: bool = False
    _one_at_a_time: "threading.Lock | None" = None

    def __init__(self, secret: JobSecret | None = None, trusts_network: bool = False) -> None:
        """Create the context; without a secret the job has this process only, and gets a random token."""
        super().__init__()
        self.secret = secret or new_secret()
        self.trusts_network = trusts_network
        self._one_at_a_time = threading.Lock()

    @property
    def token(self) -> bytes:
        """The token of the job, which each message carries."""
        return self.secret.token

    @property
    def may_go_beyond(self) -> bool:
        """True if sockets may be reached from other machines."""
        return self.secret.keys is not None or self.trusts_network

    def guard(self, socket: zmq.Socket[bytes], address: str) -> None:
        """Let a socket, which is about to listen at `address`, accept only clients with the secret."""
        assert self._one_at_a_time is not None
        with self._one_at_a_time:
            if not self._authenticates:
                authenticate(self, self.secret)
                self._authenticates = True
        require_login(socket, self.secret.keys if is_encrypted(self.secret, address) else None)
