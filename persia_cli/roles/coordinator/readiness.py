"""The coordinator's part in a job's start: replicas report ready, and with the last of them the first phase begins."""

import time
from collections.abc import Callable
from typing import Any

from persia_cli.control.membership import Member, Membership
from persia_cli.errors import CheckpointError
from persia_cli.observe.journal import Journal
from persia_cli.plan.job import Rollback
from persia_cli.roles.coordinator.joining import JoinHandler
from persia_cli.roles.coordinator.loading import Loading
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
        loading: Loading,
        clock: Callable[[], float],
        give_up: Callable[[str, int], None],
        begin: Callable[[], None],
        replaced: Callable[[Member], None],
        rollback: Rollback | None,
    ) -> None:
        """`loading` knows how many rows servers must have; `replaced` is called with each that is ready.

        `clock` returns the seconds that the coordinator has run. `rollback` is why the job has begun again, if it has.
        """
        self._server, self._joining, self._membership, self._events = server, joining, membership, events
        self._loading = loading
        self._clock, self._give_up, self._begin, self._replaced = clock, give_up, begin, replaced
        self._rollback = rollback
        self._parameters = 0
        self._begun = False

    def on_ready(self, peer: Peer, message: Ready) -> None:
        """Take note that a replica is ready."""
        member = self._joining.find(message.sender)
        member.ready = True
        self._parameters = max(self._parameters, message.parameters)
        if not self._begun:
            self._loading.finish(member.name, message.rows)
        self._server.reply(peer, Ack())
        self._replaced(member)
        if self._membership.unready or self._begun or not self._is_all_loaded():
            return
        self._begun, now = True, self._clock()
        for member in self._membership.members.values():
            member.last_seen_s = now
        self._events.write(event="ready", parameters=self._parameters, replicas=self._joining.replicas())
        for text in self._joining.shared_processors():
            self._events.write(event="warning", text=text)
        if self._rollback is not None:
            self._events.write(event="recovered", **_described(self._rollback))
        self._begin()

    def _is_all_loaded(self) -> bool:
        """Return whether servers have loaded all rows; give the job up if they have not."""
        complaint = self._loading.complaint()
        if complaint:
            self._give_up(complaint, CheckpointError.exit_code)
        return complaint is None


def _described(rollback: Rollback) -> dict[str, Any]:
    return {
        "replica": rollback.replica,
        "cause": rollback.cause,
        "seconds": round(time.time() - rollback.died_at, 3),
        "checkpoint": rollback.step,
        "repeated": {"steps": rollback.steps_again},
    }
