"""The coordinator's part in a job's start: replicas report ready, and with the last of them the first phase begins."""

from collections.abc import Callable

from persia_cli.control.membership import Membership
from persia_cli.errors import CheckpointError
from persia_cli.observe.journal import Journal
from persia_cli.roles.coordinator.joining import JoinHandler
from persia_cli.wire.job_messages import Ready
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer, Server


class Readiness:
    """Waits until all replicas are ready, then calls `begin`; `give_up` is called with why, and the exit code."""

    def __init__(
        self,
        server: Server,
        joining: JoinHandler,
        membership: Membership,
        events: Journal,
        loaded: tuple[str | None, int],
        clock: Callable[[], float],
        give_up: Callable[[str, int], None],
        begin: Callable[[], None],
    ) -> None:
        """`loaded` is the checkpoint that servers load, and how many rows they find there.

        `clock` returns the seconds in which the coordinator has been running.
        """
        self._server, self._joining, self._membership, self._events = server, joining, membership, events
        self._checkpoint, self._rows_saved = loaded
        self._clock, self._give_up, self._begin = clock, give_up, begin
        self._parameters = 0
        self._rows_loaded: dict[str, int] = {}
        self._begun = False

    def on_ready(self, peer: Peer, message: Ready) -> None:
        """Take note that a replica is ready."""
        member = self._joining.find(message.sender)
        member.ready = True
        self._parameters = max(self._parameters, message.parameters)
        self._rows_loaded[member.name] = message.rows
        self._server.reply(peer, Ack())
        if self._membership.unready or self._begun or not self._is_all_loaded():
            return
        self._begun, now = True, self._clock()
        for member in self._membership.members.values():
            member.last_seen_s = now
        self._events.write(event="ready", parameters=self._parameters, replicas=self._joining.replicas())
        self._begin()

    def _is_all_loaded(self) -> bool:
        """Return whether servers have loaded as many rows as the checkpoint has; give the job up if they have not."""
        loaded = sum(self._rows_loaded.values())
        if loaded == self._rows_saved:
            return True
        text = f"of {self._rows_saved:,} rows of {self._checkpoint} only {loaded:,} were loaded; use another checkpoint"
        self._give_up(text, CheckpointError.exit_code)
        return False
