"""The start of a job: each replica joins, loads its rows, and reports ready; then the first phase begins."""

import logging
from collections.abc import Callable
from typing import Any

from persia_cli.control.membership import Member, Membership, MisplacedError
from persia_cli.errors import CheckpointError, WireError
from persia_cli.plan.job import COORDINATOR, Rollback
from persia_cli.roles.coordinator.deaths import Replacements
from persia_cli.roles.coordinator.record import Pace
from persia_cli.roles.coordinator.state import JobState
from persia_cli.version import __version__
from persia_cli.wire.job_messages import Hello, Ready, Welcome
from persia_cli.wire.messages import PROTOCOL, Ack, Refused
from persia_cli.wire.server import Peer

log = logging.getLogger(__name__)


class Joining:
    """The admission of the replicas that the job expects: each gets its welcome when the last one has joined."""

    def __init__(self, state: JobState) -> None:
        self._state, self._membership = state, state.membership
        self._ended: str | None = None
        """The reason why no process may join after this, or None."""
        self._hellos: dict[tuple[str, int], Peer] = {}

    def on_hello(self, peer: Peer, message: Hello) -> None:
        """Admit a replica, and welcome all when the last one is there; raise WireError for one that does not fit."""
        if (message.protocol, message.version) != (PROTOCOL, __version__):
            raise MisplacedError(
                f"{message.role}-{message.index} is persia {message.version} (protocol {message.protocol}), "
                f"the coordinator is {__version__} (protocol {PROTOCOL}); install the same version everywhere"
            )
        if self._ended is not None:
            raise WireError(self._ended)
        key = (message.role, message.index)
        known = self._membership.members.get(key)
        if known is not None and known.process != message.process and key in self._hellos:
            # The process that waits has no welcome and therefore no state; the newest one replaces it.
            text = f"another process has taken the place of {known.name}"
            self._state.reply(self._hellos.pop(key), Refused(text, MisplacedError.exit_code))
            del self._membership.members[key]
        member = self._membership.join(*key, message.process, message.host, message.address, self._state.now)
        log.info(
            "%s joined: process %d on %s, at %s", member.name, member.process.pid, member.host, member.address or "-"
        )
        self._hellos[key] = peer
        if self._membership.missing:
            return
        for waiting, its_peer in self._hellos.items():
            self._welcome(its_peer, self._membership.members[waiting])
        self._hellos.clear()

    def _welcome(self, peer: Peer, member: Member) -> None:
        member.last_seen_s = self._state.now
        job, addresses = self._state.job.to_json(), self._membership.addresses()
        self._state.reply(peer, Welcome(member.incarnation, self._state.settings.run, job, addresses))

    def close(self, ended: str) -> list[str]:
        """Refuse all waiting and all later processes with this sentence; return the names of the waiting ones."""
        self._ended = ended
        for peer in self._hellos.values():
            self._state.reply(peer, Refused(ended))
        return [self._membership.members[key].name for key in self._hellos]


class Loading:
    """The number of initial rows that servers have loaded, of a checkpoint or of `init_from`."""

    def __init__(self, state: JobState, rows: int) -> None:
        """`rows` is the number that all servers together must load."""
        self._state, self._wanted = state, rows
        self._pace = Pace(rows, state.now)
        self._loading: dict[str, int] = {}
        self._done: dict[str, int] = {}

    def note(self, name: str, rows: int) -> None:
        """Record the number of rows that a server has loaded so far, and every few seconds that of all servers."""
        self._loading[name] = rows
        together = sum((self._loading | self._done).values())
        if 0 < together < self._wanted and (line := self._pace.line(together, self._state.now)):
            self._state.events.write(event="progress", doing="loading", **line)

    def finish(self, name: str, rows: int) -> None:
        """Record that a replica is ready, with this number of rows."""
        self._done[name] = rows

    def problem(self) -> str | None:
        """Return an error if the servers, which are all ready, do not have all rows."""
        loaded = sum(self._done.values())
        if loaded == self._wanted:
            return None
        source = self._state.job.load or "init_from"
        return f"of {self._wanted:,} rows of {source} only {loaded:,} were loaded; use another checkpoint"


class Readiness:
    """The replicas that are ready; when all are, the job begins."""

    def __init__(
        self,
        state: JobState,
        loading: Loading,
        replacements: Replacements,
        warnings_of: Callable[[Membership], list[str]],
        rolled_back_s: float,
    ) -> None:
        """`loading` counts the rows that servers must have; `replacements` announces new processes that are ready.

        `warnings_of` returns a sentence for each fault in the distribution of replicas. `rolled_back_s` is the number
        of seconds between the death that has rolled the job back, if any, and the start of the coordinator.
        """
        self._state, self._loading, self._replacements = state, loading, replacements
        self._warnings_of, self._rolled_back_s = warnings_of, rolled_back_s
        self._parameters = 0

    def on_ready(self, peer: Peer, message: Ready) -> None:
        """Record that a replica is ready."""
        state = self._state
        member = state.find(message.sender)
        member.ready = True
        self._parameters = max(self._parameters, message.parameters)
        if not state.begun:
            self._loading.finish(member.name, message.rows)
        state.reply(peer, Ack())
        self._replacements.on_ready(member)
        if state.membership.unready or state.begun:
            return
        if problem := self._loading.problem():
            state.abort(problem, CheckpointError.exit_code)
            return
        self._begin()

    def _begin(self) -> None:
        state, members = self._state, self._state.membership.members.values()
        state.begun = True
        for member in members:
            member.last_seen_s = state.now
        own = {"name": f"{COORDINATOR}-0", "pid": state.settings.process.pid, "host": state.settings.host}
        replicas = [own, *({"name": m.name, "pid": m.process.pid, "host": m.host} for m in members)]
        state.events.write(event="ready", parameters=self._parameters, replicas=replicas)
        for text in self._warnings_of(state.membership):
            state.events.write(event="warning", text=text)
        if state.job.rollback is not None:
            state.events.write(event="recovered", **self._described(state.job.rollback))

    def _described(self, rollback: Rollback) -> dict[str, Any]:
        return {
            "replica": rollback.replica,
            "cause": rollback.cause,
            "seconds": round(self._rolled_back_s + self._state.now, 3),
            "checkpoint": rollback.step,
            "repeated": {"steps": rollback.steps_again},
        }
