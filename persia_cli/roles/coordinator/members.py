"""The members of a job: a role joins, loads and is ready, shows that it lives, and dies and is replaced."""

# Invariants:
#
# - A replica has one process at a time. Another one gets its name only before the welcome, or after its death, as the
#   next incarnation; `JobState.find` refuses messages of earlier incarnations.
# - All replicas are welcomed together, once the last one has joined. The first phase begins once all are ready and
#   servers have all initial rows.
# - A death is judged once, however often it is reported. It is repaired during the phases, by the rule of the role and
#   within the limit of restarts; any other death fails the job.
# - Each replica receives the deaths and new processes of the others in the order in which they happened.
# - From the first phase on, a silent replica is killed, once, if that is possible from here, and fails the job if not.

import logging
from dataclasses import dataclass

from persia_cli.config.schema import Run
from persia_cli.control.membership import Member, Membership, MisplacedError
from persia_cli.control.restarts import NEVER_AGAIN, SILENT, RestartPolicy, ended_how, may_be_replaced
from persia_cli.errors import CheckpointError, RoleError, WireError
from persia_cli.plan.job import COORDINATOR, Replica
from persia_cli.plan.pinning import shared_processors
from persia_cli.roles.coordinator.checkpoints import Saves
from persia_cli.roles.coordinator.record import Pace
from persia_cli.roles.coordinator.state import GONE_S, JobOrigin, JobState, Kill, TimePassed
from persia_cli.roles.coordinator.work import WorkQueue
from persia_cli.version import __version__
from persia_cli.wire.job_messages import (
    FINISHED,
    SENT_AGAIN,
    Beat,
    Change,
    Counters,
    Death,
    Heartbeat,
    Hello,
    Ready,
    Verdict,
    Welcome,
)
from persia_cli.wire.message import ProcessId
from persia_cli.wire.messages import PROTOCOL, Ack, Refused
from persia_cli.wire.server import Peer

log = logging.getLogger(__name__)

STILL_TIMES = 4
"""Multiple of `cluster.silence_timeout_s` after which a job without any progress is aborted."""
NOTICE_AFTER_S = 10.0
"""Seconds of work on one thing before a notice, and between two notices."""
REPEATED = {
    "data-loader": "steps",
    "embedding-worker": "batches",
    "embedding-server": "requests",
}
"""The kind of repeated work, by role."""


class JobMembers:
    """The replicas of one job from `Hello` to the last heartbeat."""

    def __init__(self, state: JobState, deaths: "Deaths") -> None:
        self._state, self._deaths = state, deaths
        self._membership, self._phases, self._limits = state.membership, state.phases, state.run.cluster
        self._refusal: str | None = None
        """The reason why no process may join after this, or None."""
        self._hellos: dict[tuple[str, int], Peer] = {}
        """The replicas that have joined and wait for the others."""
        self._pace = Pace(state.origin.rows, state.now)
        self._loaded: dict[str, int] = {}
        """Number of initial rows that each replica has loaded, of a checkpoint or of `init_from`."""
        self._parameters = 0
        self._noticed_s = state.now

    # A role joins

    def on_hello(self, peer: Peer, message: Hello) -> None:
        """Admit a replica, and welcome all when the last one is there; raise WireError for one that does not fit."""
        if (message.protocol, message.version) != (PROTOCOL, __version__):
            raise MisplacedError(
                f"{message.role}-{message.index} is persia {message.version} (protocol {message.protocol}), "
                f"the coordinator is {__version__} (protocol {PROTOCOL}); install the same version everywhere"
            )
        if self._refusal is not None:
            raise WireError(self._refusal)
        key = (message.role, message.index)
        known = self._membership.members.get(key)
        if known is not None and known.process != message.process:
            self._make_way(known)
        member = self._membership.join(*key, message.process, message.host, message.address, self._state.now)
        log.info(
            "%s joined: process %d on %s, at %s", member.name, member.process.pid, member.host, member.address or "-"
        )
        self._hellos[key] = peer
        if self._membership.missing:
            return
        state, addresses = self._state, self._membership.addresses()
        run, job = state.run.model_dump_json().encode(), state.job.to_json()
        for key, waiting in self._hellos.items():
            member = self._membership.members[key]
            member.last_seen_s = state.now
            state.reply(waiting, Welcome(member.incarnation, run, job, addresses))
        self._hellos.clear()

    def _make_way(self, known: Member) -> None:
        """Remove a replica that has no welcome and therefore no state, since a newer process has its name.

        Fail the job if the replica has ended without a report, as in a container that died. Silence is watched from
        the first phase on; until then the next process shows it.
        """
        state, key = self._state, (known.role, known.index)
        if key in self._hellos:
            text = f"another process has taken the place of {known.name}"
            state.reply(self._hellos.pop(key), Refused(text, MisplacedError.exit_code))
            del self._membership.members[key]
        elif not state.started and not known.died and state.now - known.last_seen_s > GONE_S:
            text = f"{_described(known)} has ended before the first phase: another process has its name"
            state.abort(text)
            raise WireError(text)

    def close(self, refusal: str) -> list[str]:
        """Refuse all waiting and all later processes with this sentence; return the names of the waiting ones."""
        self._refusal = refusal
        for peer in self._hellos.values():
            self._state.reply(peer, Refused(refusal))
        return [self._membership.members[key].name for key in self._hellos]

    def on_ready(self, peer: Peer, message: Ready) -> None:
        """Record that a replica is ready; begin the job when all are, with all rows."""
        state = self._state
        member = state.find(message.sender)
        member.ready = True
        self._parameters = max(self._parameters, message.parameters)
        self._loaded[member.name] = message.rows
        state.reply(peer, Ack())
        self._deaths.on_ready(member)
        if self._membership.unready or state.started:
            return
        loaded, rows = sum(self._loaded.values()), state.origin.rows
        if loaded != rows:
            source = state.job.load or "init_from"
            text = f"of {rows:,} rows of {source} only {loaded:,} were loaded; use another checkpoint"
            state.abort(text, CheckpointError.exit_code)
            return
        self._start()

    def _start(self) -> None:
        state, members = self._state, self._membership.members.values()
        state.started = True
        for member in members:
            member.last_seen_s = state.now
        coordinator = {"name": f"{COORDINATOR}-0", "pid": state.origin.process.pid, "host": state.origin.host}
        replicas = [coordinator, *({"name": m.name, "pid": m.process.pid, "host": m.host} for m in members)]
        state.events.write(event="ready", parameters=self._parameters, replicas=replicas)
        for text in pinning_warnings(state.run, self._membership, state.origin):
            state.events.write(event="warning", text=text)
        if (rollback := state.job.rollback) is not None:
            state.events.write(
                event="recovered",
                replica=rollback.replica,
                cause=rollback.cause,
                seconds=round(state.origin.rolled_back_s + state.now, 3),
                checkpoint=rollback.step,
                repeated={"steps": rollback.steps_again},
            )

    # A role shows that it lives

    def on_heartbeat(self, peer: Peer, message: Heartbeat) -> None:
        """Record that a replica is alive, and answer with the changes that it has not received."""
        state, counters = self._state, message.usage.counters
        member = state.find(message.sender)
        state.record.note(member.name, message.usage, member.incarnation)
        self._deaths.on_heartbeat(member, message.heard, counters)
        if not (state.started or member.ready):
            self._loaded[member.name] = counters.counts.get("rows_loaded", 0)
            loaded = sum(self._loaded.values())
            if 0 < loaded < state.origin.rows and (line := self._pace.line(loaded, state.now)):
                state.events.write(event="progress", doing="loading", **line)
        member.doing, member.doing_s = message.doing, message.doing_s
        state.stall.observe(member.name, counters, state.now)
        if message.doing and message.doing_s <= self._limits.work_timeout_s:
            state.stall.restart(state.now)
        state.reply(peer, self._deaths.beat(message.heard))
        if state.stopping:
            state.informed.add(member.name)

    def on_time(self, event: TimePassed) -> None:
        """Kill a silent replica; abort the job if one is late or stuck, or cannot be killed from here.

        At the end of a job, do not wait for such a replica.
        """
        phase = self._phases.current
        is_at_end = phase is not None and phase.kind == "done"
        if phase is not None and not is_at_end:
            for member in self._silent():
                if member.ready and member.killed_s is None and self._may_kill(member):
                    self._kill(member)
        problem = (None if is_at_end else self._problem()) or self._disk_problem(event)
        if problem:
            self._state.abort(problem)
        elif is_at_end:
            for member in self._silent() + self._membership.replaced + self._stuck():
                self._phases.finish(member.name, self._phases.number)
        self._write_notice(event)

    def _silent(self) -> list[Member]:
        return self._membership.silent(self._state.now, self._limits.silence_timeout_s)

    def _stuck(self) -> list[Member]:
        return self._membership.stuck(self._limits.work_timeout_s)

    def _may_kill(self, member: Member) -> bool:
        """Return True for another process at the coordinator's place, where process ids mean the same."""
        coordinator, other = self._state.origin.process, member.process
        return bool(coordinator.domain) and other.domain == coordinator.domain and other.pid != coordinator.pid

    def _kill(self, member: Member) -> None:
        """Kill a silent process, so that it never acts again; its supervisor then reports its death as any other."""
        state = self._state
        member.killed_s = state.now
        state.stall.restart(state.now)
        text = f"{self._silence(member)} (cluster.silence_timeout_s), so it is killed"
        state.events.write(event="warning", text=text, killed=member.process.pid)
        state.effects.append(Kill(member.process, self._silence_error(member)))

    def _problem(self) -> str | None:
        """Return the reason to abort a job that is not at its end, or None."""
        now, limits, phase = self._state.now, self._limits, self._phases.current
        for member in self._stuck():
            return (
                f"{_described(member)} has been {member.doing} for {member.doing_s:.0f} s; see its log "
                "(cluster.work_timeout_s raises the limit)"
            )
        if phase is None:
            return self._lateness()
        for member in self._membership.replaced:
            # A process that loads its rows anew may take long; the limit of `stuck` holds for that.
            if not member.doing and now - member.lost_s > limits.start_timeout_s:
                return (
                    f"{member.name} has died, and its new process is not ready after "
                    f"{limits.start_timeout_s:g} s; see its log (cluster.start_timeout_s raises the limit)"
                )
        for member in self._silent():
            if member.ready and (member.killed_s is None or now - member.killed_s > limits.silence_timeout_s):
                return self._silence_error(member)
        still_s = self._state.stall.still_s(now)
        if phase.kind == "idle" or still_s <= STILL_TIMES * limits.silence_timeout_s:
            return None
        return (
            f"all replicas are alive, yet nothing has moved for {still_s:.0f} s while {phase.kind}, waiting for "
            f"{', '.join(sorted(self._phases.waiting | self._phases.writing))}; see the logs "
            "(cluster.silence_timeout_s raises the limit)"
        )

    def _lateness(self) -> str | None:
        # Replicas that have joined wait for the missing ones; only the latter are late.
        missing, now = self._membership.missing, self._state.now
        limit_s = self._limits.start_timeout_s
        if now <= limit_s or (not missing and self._state.stall.still_s(now) <= limit_s):
            return None
        return (
            f"{'not joined' if missing else 'not ready'} after {limit_s:g} s: "
            f"{', '.join(missing or self._membership.unready)}; see their logs "
            "(cluster.start_timeout_s raises the limit)"
        )

    def _disk_problem(self, event: TimePassed) -> str | None:
        """Return the reason to abort the job if the coordinator's own work on a disk takes too long."""
        if not event.doing:
            return None
        if event.doing_s <= self._limits.work_timeout_s:
            self._state.stall.restart(event.now)
            return None
        return (
            f"{COORDINATOR}-0 has been {event.doing} for {event.doing_s:.0f} s; check the disk or store "
            "(cluster.work_timeout_s raises the limit)"
        )

    def _write_notice(self, event: TimePassed) -> None:
        """Record what takes longest, at most every NOTICE_AFTER_S; the coordinator's own work on a disk counts too."""
        member = self._membership.busiest
        name, doing, seconds = (member.name, member.doing, member.doing_s) if member else ("", "", 0.0)
        if event.doing_s > seconds:
            name, doing, seconds = f"{COORDINATOR}-0", event.doing, event.doing_s
        if seconds >= NOTICE_AFTER_S and event.now - self._noticed_s >= NOTICE_AFTER_S:
            self._noticed_s = event.now
            self._state.events.write(event="waiting", replica=name, doing=doing, seconds=round(seconds))

    def _silence(self, member: Member) -> str:
        """Return a clause about a silent replica."""
        return f"{_described(member)} has shown no progress for {self._limits.silence_timeout_s:g} s"

    def _silence_error(self, member: Member) -> str:
        return f"{self._silence(member)}; see its log (cluster.silence_timeout_s raises the limit)"


def _described(member: Member) -> str:
    return f"{member.name} (process {member.process.pid} on {member.host})"


def pinning_warnings(run: Run, membership: Membership, coordinator: JobOrigin) -> list[str]:
    """Return a warning for each machine on which replicas are pinned to the same processors."""
    machine = coordinator.process.domain or coordinator.host
    hosts, replicas = {machine: coordinator.host}, {machine: [Replica(COORDINATOR, 0)]}
    for member in membership.members.values():
        machine = member.process.domain or member.host
        hosts[machine] = member.host
        replicas.setdefault(machine, []).append(Replica(member.role, member.index))
    warnings = (shared_processors(run, pinned, hosts[machine]) for machine, pinned in replicas.items())
    return [text for text in warnings if text is not None]


@dataclass(slots=True)
class Replacement:
    """A new process of a dead replica, until the lost work is repeated; times are in seconds."""

    key: tuple[str, int]
    """The replica's role and index."""
    cause: str
    process: ProcessId
    died_s: float
    repeated: str
    """Kind of the repeated work: steps assigned again, batches whose ids are sent again, or finished requests."""
    again: int | None = None
    """The amount of repeated work, once known; batches are counted until the loaders have received the change."""
    sent_before: int = 0
    change: int = 0
    """Number of the change that announces the new process; 0 until it is ready."""


class Deaths:
    """The decisions on restarts, and the announcements of deaths and new processes to all replicas."""

    def __init__(self, state: JobState, work: WorkQueue, saves: Saves) -> None:
        """`work` assigns the steps of a dead loader again, and `saves` aborts a save that a death has spoilt."""
        self._state, self._work, self._saves = state, work, saves
        self._policy = RestartPolicy(state.run.recovery.max_restarts, state.run.recovery.window_s)
        self._verdicts: dict[tuple[str, int, ProcessId], Verdict] = {}
        self._changes: dict[str, Change] = {}
        self._number = 0
        self._replacements: dict[str, Replacement] = {}
        self._acknowledged: dict[str, int] = {}
        """Number of the last change that each loader has received."""
        self._sent_again: dict[str, int] = {}
        self._sent_by_dead = 0

    def on_death(self, peer: Peer, message: Death) -> None:
        """Answer the parent of a process that ended; raise WireError for a process that is not the replica's last."""
        key = (message.role, message.index, message.process)
        # A repeated report must not count as another death.
        if key not in self._verdicts:
            self._verdicts[key] = self._judge(message)
        self._state.reply(peer, self._verdicts[key])

    def _judge(self, message: Death) -> Verdict:
        name = f"{message.role}-{message.index}"
        member = self._state.membership.members.get((message.role, message.index))
        how = SILENT if member is not None and member.killed_s is not None else ended_how(message.exit_code)
        if member is not None and not member.died and member.process != message.process:
            present = f"process {member.process.pid} on {member.host}"
            raise WireError(f"the process that ended, {message.process.pid}, is not that of {name}, {present}")
        why = f"{name} {how}"
        if member is not None and self._is_repairable(message):
            after_s = self._policy.next(name, self._state.now)
            if after_s is not None:
                self._record_death(member, message.process, how)
                return Verdict(True, after_s, "")
            limits = f"{self._policy.max_restarts} within {self._policy.window_s:g} s"
            why += f", and its restarts are used up (recovery.max_restarts: {limits})"
        self._state.abort(why, message.exit_code if message.exit_code in NEVER_AGAIN else RoleError.exit_code)
        return Verdict(False, 0.0, why)

    def _is_repairable(self, message: Death) -> bool:
        phase = self._state.phases.current
        return (
            self._policy.max_restarts > 0
            and may_be_replaced(message.role, message.exit_code, memory_is_retained=True)
            and phase is not None
            and phase.kind != "done"
            and not self._state.stopping
        )

    def _record_death(self, member: Member, process: ProcessId, how: str) -> None:
        """Record the death of a process, and prepare its replacement."""
        name, now = member.name, self._state.now
        member.die(now)
        self._saves.on_death(name, how)
        # The counter of the next process begins at 0, so that of the dead one is added to the total.
        self._sent_by_dead += self._sent_again.pop(name, 0)
        self._acknowledged.pop(name, None)
        before = self._replacements.get(name)
        self._replacements[name] = Replacement(
            (member.role, member.index),
            how,
            process,
            # A second death before the recovery belongs to the same recovery.
            before.died_s if before else now,
            REPEATED[member.role],
            sent_before=before.sent_before if before else self._sent,
        )
        if member.role == "data-loader":
            self._replacements[name].again = self._work.take_back(name) + (before.again or 0 if before else 0)
        self._announce(member, process, alive=False)
        self._state.events.write(event="died", replica=name, pid=process.pid, cause=how)

    @property
    def _sent(self) -> int:
        """Number of batches whose ids were sent again so far."""
        return self._sent_by_dead + sum(self._sent_again.values())

    def _announce(self, member: Member, died: ProcessId, alive: bool) -> None:
        self._number += 1
        self._changes[member.name] = Change(self._number, member.role, member.index, died, alive, member.address)

    def on_ready(self, member: Member) -> None:
        """Announce the address of a replica that is ready, if it is a new process."""
        replacement = self._replacements.get(member.name)
        if replacement is None:
            return
        self._announce(member, replacement.process, alive=True)
        replacement.change = self._number
        self._finish()

    def beat(self, last_change: int) -> Beat:
        """Return the answer to a replica that has received the changes up to `last_change`; the edge adds the clock."""
        changes = tuple(change for change in self._changes.values() if change.number > last_change)
        return Beat(self._state.stopping, changes)

    def on_heartbeat(self, member: Member, last_change: int, counters: Counters) -> None:
        """Record the last change that a replica has received, and the number of requests that it sent again."""
        if member.role == "data-loader":
            self._acknowledged[member.name] = last_change
            self._sent_again[member.name] = counters.counts.get(SENT_AGAIN, 0)
        self.on_counters(member, counters)

    def on_counters(self, member: Member, counters: Counters) -> None:
        """Record how many requests of the dead process its replacement has finished."""
        replacement = self._replacements.get(member.name)
        if replacement is not None and replacement.repeated == "requests" and replacement.change:
            replacement.again = counters.updates.get(FINISHED, 0)
        self._finish()

    def _finish(self) -> None:
        """Record the completed recoveries, whose lost work is sent again or finished."""
        for name, replacement in list(self._replacements.items()):
            if replacement.repeated == "batches":
                # Loaders send batches again when they receive the change, so the count is final after the last one.
                waits = any(n < replacement.change for n in self._acknowledged.values())
            else:
                waits = replacement.again is None
            if not replacement.change or waits:
                continue
            del self._replacements[name]
            again = self._sent - replacement.sent_before if replacement.repeated == "batches" else replacement.again
            self._state.events.write(
                event="recovered",
                replica=name,
                cause=replacement.cause,
                pid=self._state.membership.members[replacement.key].process.pid,
                seconds=round(self._state.now - replacement.died_s, 3),
                repeated={replacement.repeated: again},
            )
