"""The ZeroMQ context of one job, whose sockets authenticate with the job's token."""

import threading

import zmq

from persia_cli.wire.authentication import Authenticator, PortGuard
from persia_cli.wire.token import new_token


class Context(zmq.Context[zmq.Socket[bytes]]):
    """A ZeroMQ context; `token` is the secret that all replicas of the job know, and nobody else."""

    token: bytes = b""
    _authenticator: Authenticator | None = None
    _one_at_a_time: "threading.Lock | None" = None

    def __init__(self, token: bytes | None = None) -> None:
        """Create the context; without a token the job has this process only, and gets a random token."""
        super().__init__()
        self.token = new_token() if token is None else token
        self._one_at_a_time = threading.Lock()

    def guard(self, socket: zmq.Socket[bytes], address: str) -> PortGuard:
        """Let a socket, which is about to listen at `address`, accept only clients with the token."""
        assert self._one_at_a_time is not None
        with self._one_at_a_time:
            if self._authenticator is None:
                self._authenticator = Authenticator(self, self.token)
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
