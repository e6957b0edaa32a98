"""The start of a job: servers load their rows, replicas report ready, and then the first phase begins."""

import os
import socket
import time
from dataclasses import asdict
from typing import Any

from persia_cli.config.schema import Run
from persia_cli.control.membership import Membership
from persia_cli.errors import CheckpointError
from persia_cli.observe.journal import Journal
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import COORDINATOR, Job, Replica, Rollback
from persia_cli.plan.pinning import shared_processors
from persia_cli.plan.warm_start import WarmStart
from persia_cli.roles.coordinator.context import JobContext
from persia_cli.roles.coordinator.replacements import Replacements
from persia_cli.roles.coordinator.reporting import Pace
from persia_cli.storage.remote import without_secret
from persia_cli.store.checkpoints.manifest import Manifest
from persia_cli.wire.job_messages import Ready
from persia_cli.wire.messages import Ack
from persia_cli.wire.place import own_process
from persia_cli.wire.server import Peer

UNKNOWN = {"taken": None, "new": None, "unused": None, "states": None}
"""The comparison of dense weights where the coordinator's machine cannot make it."""


class Loading:
    """The number of initial rows that servers have loaded, of a checkpoint or of `init_from`."""

    def __init__(self, run: Run, job: Job, loaded: Manifest | None, events: Journal) -> None:
        """`loaded` is the manifest of the checkpoint that the job loads whole."""
        self._source = job.load or "init_from"
        self._events = events
        self._wanted = 0
        if loaded is not None:
            self._wanted = loaded.row_count(embedding_layout(run).dense_group is not None)
        elif job.warm is not None:
            self._wanted = job.warm.rows
            events.write(event="warm_start", **as_event(job.warm))
        self._pace = Pace(self._wanted, time.monotonic())
        self._loading: dict[str, int] = {}
        self._done: dict[str, int] = {}

    def note(self, name: str, rows: int) -> None:
        """Record the number of rows that a server has loaded so far, and every few seconds that of all servers."""
        self._loading[name] = rows
        together = sum((self._loading | self._done).values())
        if 0 < together < self._wanted and (line := self._pace.line(together, time.monotonic())):
            self._events.write(event="progress", doing="loading", **line)

    def finish(self, name: str, rows: int) -> None:
        """Record that a replica is ready, with this number of rows."""
        self._done[name] = rows

    def problem(self) -> str | None:
        """Return an error if the servers, which are all ready, do not have all rows."""
        loaded = sum(self._done.values())
        if loaded == self._wanted:
            return None
        return f"of {self._wanted:,} rows of {self._source} only {loaded:,} were loaded; use another checkpoint"


class Readiness:
    """The replicas that are ready; when all are, the job begins."""

    def __init__(self, context: JobContext, loading: Loading, replacements: Replacements) -> None:
        """`loading` counts the rows that servers must have; `replacements` announces new processes that are ready."""
        self._context, self._loading, self._replacements = context, loading, replacements
        self._parameters = 0

    def on_ready(self, peer: Peer, message: Ready) -> None:
        """Record that a replica is ready."""
        context = self._context
        member = context.find(message.sender)
        member.ready = True
        self._parameters = max(self._parameters, message.parameters)
        if not context.begun:
            self._loading.finish(member.name, message.rows)
        context.reply(peer, Ack())
        self._replacements.on_ready(member)
        if context.membership.unready or context.begun:
            return
        if problem := self._loading.problem():
            context.abort(problem, CheckpointError.exit_code)
            return
        self._begin()

    def _begin(self) -> None:
        context, members = self._context, self._context.membership.members.values()
        context.begun = True
        for member in members:
            member.last_seen_s = context.now()
        own = {"name": f"{COORDINATOR}-0", "pid": os.getpid(), "host": socket.gethostname()}
        replicas = [own, *({"name": m.name, "pid": m.process.pid, "host": m.host} for m in members)]
        context.events.write(event="ready", parameters=self._parameters, replicas=replicas)
        for text in pinning_warnings(context.run, context.membership):
            context.events.write(event="warning", text=text)
        if context.job.rollback is not None:
            context.events.write(event="recovered", **_described(context.job.rollback))


def pinning_warnings(run: Run, membership: Membership) -> list[str]:
    """Return a warning for each machine on which replicas are pinned to the same processors."""
    own, here = own_process().place, socket.gethostname()
    hosts, replicas = {own or here: here}, {own or here: [Replica(COORDINATOR, 0)]}
    for each in membership.members.values():
        machine = each.process.place or each.host
        hosts[machine] = each.host
        replicas.setdefault(machine, []).append(Replica(each.role, each.index))
    found = (shared_processors(run, there, hosts[machine]) for machine, there in replicas.items())
    return [text for text in found if text is not None]


def _described(rollback: Rollback) -> dict[str, Any]:
    return {
        "replica": rollback.replica,
        "cause": rollback.cause,
        "seconds": round(time.time() - rollback.died_at, 3),
        "checkpoint": rollback.step,
        "repeated": {"steps": rollback.steps_again},
    }


def as_event(warm: WarmStart) -> dict[str, Any]:
    """Return the keys of the event that records the warm start of a run."""
    fit = warm.fit
    return {
        "checkpoint": warm.checkpoint and without_secret(warm.checkpoint),
        "step": warm.step,
        "tables": [
            {"table": each.name, "from": each.source, "rows": each.rows, "states": each.states} for each in warm.tables
        ],
        "vectors": [
            {"table": each.name, "from": without_secret(each.path), "rows": each.rows} for each in warm.vectors
        ],
        "new": list(warm.new),
        "unused": list(warm.unused),
        "dense": (asdict(fit) if fit else UNKNOWN) if warm.dense else None,
    }
