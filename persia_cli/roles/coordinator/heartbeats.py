"""Heartbeats: counters and present work of the replicas, and their answers with changes of peers."""

from persia_cli.control.membership import Member
from persia_cli.roles.coordinator.context import JobContext
from persia_cli.roles.coordinator.liveness import LivenessMonitor, silence
from persia_cli.roles.coordinator.readiness import Loading
from persia_cli.roles.coordinator.replacements import Replacements
from persia_cli.wire.job_messages import Heartbeat
from persia_cli.wire.place import kill
from persia_cli.wire.server import Peer


class Heartbeats:
    """The answers to heartbeats, and the end of a job in which a replica is late, silent or stuck."""

    def __init__(self, context: JobContext, loading: Loading, replacements: Replacements) -> None:
        self._context, self._loading, self._replacements = context, loading, replacements
        self._liveness = LivenessMonitor(
            context.run.cluster, context.membership, context.phases, context.stall, context.now()
        )

    def on_heartbeat(self, peer: Peer, message: Heartbeat) -> None:
        """Record that a replica is alive, and answer with the changes that it has not received."""
        context, counters = self._context, message.figures.counters
        member = context.find(message.sender)
        context.record.note(member.name, message.figures, member.incarnation)
        self._replacements.note_heartbeat(member, message.heard, counters)
        self._loading.note(member.name, counters.counts.get("rows_loaded", 0))
        self._liveness.note(member, message.doing, message.doing_s, counters, context.now())
        context.reply(peer, self._replacements.beat(message.heard))
        if context.stopping:
            context.informed.add(member.name)

    def tick(self) -> None:
        """Kill a silent replica; abort the job if one is late or stuck, or cannot be killed from here.

        At the end of a job, do not wait for such a replica.
        """
        context, now = self._context, self._context.now()
        for member in self._liveness.hung(now):
            self._kill(member, now)
        doing, doing_s = context.disk.age()
        problem = self._liveness.problem(now) or self._liveness.disk_problem(doing, doing_s, now)
        if problem:
            context.abort(problem)
        elif (phase := context.phases.current) is not None and phase.kind == "done":
            for member in self._liveness.silent(now):
                context.phases.finish(member.name, context.phases.number)
        if waiting := self._liveness.waiting(now, doing, doing_s):
            context.events.write(event="waiting", **waiting)

    def _kill(self, member: Member, now: float) -> None:
        """Kill a silent process, so that it never acts again; its supervisor then reports its death as any other."""
        if not kill(member.process):
            return
        member.killed_s = now
        self._context.stall.restart(now)
        limit_s = self._context.run.cluster.silence_timeout_s
        text = f"{silence(member, limit_s)} (cluster.silence_timeout_s), so it is killed"
        self._context.events.write(event="warning", text=text, killed=member.process.pid)
