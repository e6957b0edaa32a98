"""The ZeroMQ context of one job, whose sockets authenticate with the job's secret."""

import threading

import zmq

from persia_cli.wire.authentication import Authenticator
from persia_cli.wire.port_guard import PortGuard
from persia_cli.wire.secret import JobSecret, new_secret


class Context(zmq.Context[zmq.Socket[bytes]]):
    """A ZeroMQ context; `secret` is what all replicas of the job know, and nobody else.

    If it has keys, all connections over TCP are encrypted. Without, addresses that other machines can reach are
    refused, unless `trusts_network`: then what passes there can be read and changed by whoever is in between.
    """

    secret: JobSecret = JobSecret(b"")
    trusts_network: bool = False
    _authenticator: Authenticator | None = None
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

    def guard(self, socket: zmq.Socket[bytes], address: str) -> PortGuard:
        """Let a socket, which is about to listen at `address`, accept only clients with the secret."""
        assert self._one_at_a_time is not None
        with self._one_at_a_time:
            if self._authenticator is None:
                self._authenticator = Authenticator(self, self.secret)
            return self._authenticator.guard(socket, address)

    def term(self) -> None:
        """Close the context once all its sockets are closed."""
        self._dismiss()
        super().term()

    def destroy(self, linger: int | None = None) -> None:
        """Close all sockets and then the context."""
        self._dismiss()
        super().destroy(linger)

    def _dismiss(self) -> None:
        authenticator, self._authenticator = self._authenticator, None
        if authenticator is not None:
            authenticator.close()
