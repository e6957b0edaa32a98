"""A job on a Ray cluster: the coordinator beside the command, an actor beside each other replica."""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from persia_cli.control.membership import RunningClock
from persia_cli.control.restarts import RestartPolicy
from persia_cli.engines.configuration import keys_of_job
from persia_cli.engines.handed_over import text_of
from persia_cli.engines.job import (
    ERROR_LINE,
    ROLES,
    SIGNALLED,
    address_in,
    record,
    recorded_failure,
    replicas_named,
    was_cut_off,
)
from persia_cli.engines.ray.cluster import JoinedCluster
from persia_cli.engines.ray.followed import ActorReplica, FollowedReplica, OwnReplica
from persia_cli.engines.ray.request import words_of
from persia_cli.engines.supervisor import WELL
from persia_cli.errors import KilledError, MemoryFileError, PersiaError, RoleError, UserError
from persia_cli.plan.job import JobPlan, Replica
from persia_cli.plan.replacement import RESTARTED

POLL_S = 0.05
SETTLE_S = 3.0
"""Seconds that the coordinator has to end, and to record why a replica failed, before that is said here."""
LOG_TAIL_LINES = 20
MOST_LOGS = 8
"""Replicas that a failure names whose logs are shown with it."""


class RayJob:
    """The replicas of one job; `poll` has to be called all the time."""

    def __init__(self, plan: JobPlan, cluster: JoinedCluster) -> None:
        self._plan, self._cluster = plan, cluster
        keys = keys_of_job()
        self._given = text_of(keys)
        self._address = ""
        """Of the coordinator, once it listens."""
        first, *others = plan.replicas
        self._coordinator = OwnReplica(first, self._log_of(first))
        self._others: dict[Replica, ActorReplica] = {}
        self._waiting = others
        self._due: dict[Replica, float] = {}
        """When a new actor is to be made for a replica whose place was lost."""
        self._final: dict[Replica, str] = {}
        """Why the places of these replicas are not replaced."""
        self._policy = RestartPolicy(plan.run.recovery.max_restarts, plan.run.recovery.window_s)
        self._saves = False

    def start(self, meanwhile: Callable[[], None]) -> None:
        """Wait for room and machines, then start the coordinator and all others.

        `meanwhile` is called again and again. Raises the failure of the first replica that does not start.
        """
        self._cluster.reserve(self._note, meanwhile)
        for replica in self._waiting:
            self._others[replica] = ActorReplica(replica, self._log_of(replica), self._cluster.actor(replica))
        limit_s = self._plan.run.cluster.start_timeout_s
        self._await(lambda: all(each.machine for each in self._others.values()), limit_s, "has no actor", meanwhile)
        words = words_of(
            self._plan.run,
            self._coordinator.replica,
            f"tcp://{self._cluster.address}:*",
            "",
            str(self._plan.run_dir.absolute()),
        )
        self._coordinator.begin(words, self._given)
        self._await(lambda: bool(address_in(self._plan.run_dir)), limit_s, "does not listen", meanwhile)
        self._address = address_in(self._plan.run_dir)

    def _note(self, text: str) -> None:
        record(self._plan.run_dir, event="note", text=text)  # nobody else writes events yet

    def _await(self, condition: Callable[[], bool], limit_s: float, what: str, meanwhile: Callable[[], None]) -> None:
        awake = RunningClock(time.monotonic())
        while not condition():
            self.poll()
            self.check()
            meanwhile()
            if awake.at(time.monotonic()) > limit_s:
                late = next((each for each in self._others.values() if not each.machine), self._coordinator)
                raise RoleError(f"{late.named} {what} after {limit_s:g} s{self._tail(late)}")
            time.sleep(POLL_S)

    def poll(self) -> None:
        """Take what has come from all machines, and replace places that were lost where the coordinator wants that."""
        self._coordinator.poll()
        for each in list(self._others.values()):
            each.poll()
            if self._address and each.machine and not each.begun:
                words = words_of(self._plan.run, each.replica, self._address, each.machine.address, "")
                each.begin(words, self._given)
            goes_on = self._coordinator.runs or not self._coordinator.begun
            if each.lost and goes_on and each.replica not in self._due and each.replica not in self._final:
                self._note_lost(each)
            if each.life > 1 and each.waits_s > self._cluster.room_s:
                raise RoleError(
                    f"{each.replica.name} has lost its place, and there has been no other for {each.waits_s:.0f} s "
                    f"(cluster.room_s): {self._cluster.why_no_room()}"
                )
        self._replace()

    def _note_lost(self, place: ActorReplica) -> None:
        """Decide on a replica that was lost with its actor: a new one, or the end of this start of the job."""
        replica = place.replica
        if replica.role not in RESTARTED:
            self._final[replica] = f"{place.named} was lost, and its memory with it: {place.lost}"
            return
        wait_s = self._policy.next(replica.name, time.monotonic())
        if wait_s is None:
            why = f"its actor was lost too often (recovery.max_restarts): {place.lost}"
            self._final[replica] = f"{place.named} was lost: {why}"
        else:
            self._due[replica] = time.monotonic() + wait_s

    def _replace(self) -> None:
        for replica in [replica for replica, due_s in self._due.items() if time.monotonic() >= due_s]:
            del self._due[replica]
            before = self._others[replica]
            self._others[replica] = ActorReplica(replica, before.log, self._cluster.actor(replica), before.life + 1)

    @property
    def _all(self) -> list[FollowedReplica]:
        return [self._coordinator, *self._others.values()]

    @property
    def _failed(self) -> list[FollowedReplica]:
        return [each for each in self._all if each.code not in (None, *WELL)]

    @property
    def running(self) -> bool:
        """True if the coordinator runs and no replica has failed for good."""
        return self._coordinator.runs and not self._failed and not self._final

    def end_with_model(self) -> None:
        """Have the coordinator save the model and end the job."""
        if not self._saves:
            self._saves = True
            self._coordinator.signal(signal.SIGUSR1)

    def wait(self, seconds: float) -> None:
        """Wait until the job has ended, at most so long."""
        self._wait([self._coordinator], seconds)

    def check(self) -> None:
        """Raise the failure that ended the job, if there was one."""
        failed = self._failed
        if not failed and not self._final:
            return
        self._wait([self._coordinator], SETTLE_S)
        if self._coordinator.code in WELL:
            return  # all was done, or saved; who was lost after that was needed no more
        for replica, why in self._final.items():
            raise self._killed(why, replica)
        for each in failed:
            # It was killed from outside, so this is the cause; errors of other replicas are consequences.
            if each.code is not None and (each.code > SIGNALLED or each.code == MemoryFileError.exit_code):
                raise self._killed(self._why(each), each.replica)
        first = next((each for each in failed if each is not self._coordinator), failed[0])
        recorded = recorded_failure(self._plan.run_dir)
        if recorded is None:
            kind = UserError if first.code == UserError.exit_code else RoleError
            raise kind(self._why(first))
        named = replicas_named(recorded)
        there = [each for each in self._all if each is not self._coordinator and each.replica.name in named]
        if there and not isinstance(recorded, UserError):
            self._wait(there, SETTLE_S)  # what has failed itself ends now; who does not stands still, or is cut off
            if silent := [each for each in there if each.code is None or was_cut_off(self._lines(each))]:
                death = self._killed(str(recorded), silent[0].replica)
                raise self._with_logs(death, there) from recorded
        raise self._with_logs(recorded, there)

    def _with_logs(self, failure: PersiaError, places: Sequence[FollowedReplica]) -> PersiaError:
        """Return a failure with the machines of the replicas that it names, and the ends of their logs."""
        for each in places[:MOST_LOGS]:
            failure.add_note(f"{each.named}{self._tail(each)}")
        if others := [each.named for each in places[MOST_LOGS:]]:
            failure.add_note(f"{', '.join(others)}: persia logs {self._plan.run_dir}")
        return failure

    def _killed(self, why: str, replica: Replica) -> PersiaError:
        return RoleError(why) if self._saves else KilledError(why, replica.name)

    def _why(self, place: FollowedReplica) -> str:
        """Return why a replica ended, as its log has it."""
        assert place.code is not None
        lines = self._lines(place)
        if errors := [line.removeprefix(ERROR_LINE) for line in lines if line.startswith(ERROR_LINE)]:
            return f"{place.named}: {errors[-1]}"
        by = f"by signal {place.code - SIGNALLED}" if place.code > SIGNALLED else f"with exit code {place.code}"
        return f"{place.named} ended {by}{self._tail(place)}"

    def _tail(self, place: FollowedReplica) -> str:
        lines = self._lines(place)[-LOG_TAIL_LINES:] or ["(nothing)"]
        return f"; the end of {place.log}:\n" + "\n".join(f"  {line}" for line in lines)

    def _lines(self, place: FollowedReplica) -> list[str]:
        if not place.log.exists():
            return []
        return place.log.read_text(encoding="utf-8", errors="replace").splitlines()

    def stop(self) -> None:
        """End all that still runs: ask the coordinator and then the others to stop, and end what runs after that."""
        limit_s = self._plan.run.cluster.stop_timeout_s
        others = list(self._others.values())
        try:
            if self._coordinator.code in WELL:
                self._wait(others, limit_s)  # they have heard that the job is done
            for group in ([self._coordinator], others):
                for each in group:
                    if each.runs and limit_s:
                        each.signal(signal.SIGINT)
                self._wait(group, limit_s)
        finally:
            self._coordinator.close()
            for each in others:
                self._cluster.end(each.actor)

    def _wait(self, places: Sequence[FollowedReplica], seconds: float) -> None:
        """Wait until these have ended, but not longer than so many seconds."""
        awake = RunningClock(time.monotonic())
        while any(each.runs for each in places) and awake.at(time.monotonic()) < seconds:
            for each in self._all:
                each.poll()
            time.sleep(POLL_S)

    def _log_of(self, replica: Replica) -> Path:
        return self._plan.run_dir / ROLES / f"{replica.name}.log"
