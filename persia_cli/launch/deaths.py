"""Reports of deaths to the coordinator, which decides whether a replica gets a new process."""

from collections.abc import Callable

from persia_cli.wire.job_messages import Death, Verdict
from persia_cli.wire.loop import Loop, identity_of
from persia_cli.wire.place import own_process
from persia_cli.wire.sockets import Context

VERDICT_S = 20.0
"""Seconds of silence of the coordinator after which a death is final."""


class DeathReports:
    """A supervisor's client of the coordinator, which connects at the first death; all on one thread."""

    def __init__(self, name: str, address: Callable[[], str], context: Callable[[], Context]) -> None:
        self._name, self._address, self._new_context = name, address, context
        self._context: Context | None = None
        self._loop: Loop | None = None

    def send(self, death: Death, on_verdict: Callable[[Verdict], None]) -> None:
        """Report a death; `on_verdict` is called while `poll` runs."""
        if self._loop is None:
            self._context = self._new_context()
            self._loop = Loop(self._context, self._name)
            identity = identity_of(self._name, own_process())
            self._client = self._loop.connect(self._address(), "coordinator", identity, 0.5, VERDICT_S)
        self._client.request(death, on_reply=on_verdict, waiting_for=f"its word on {death.role}-{death.index}")

    def poll(self) -> None:
        """Receive what has come; raises WireError if the coordinator has gone or will not hear of it."""
        if self._loop is not None:
            self._loop.poll(0.0)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._loop is not None and self._context is not None:
            self._loop.close()
            self._context.destroy(linger=0)
        self._loop = self._context = None
