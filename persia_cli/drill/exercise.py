"""A drill from its begin to its end: the job is watched, disturbed at its steps, and counted when it is over."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from persia_cli.drill.counting import measure_times, take_from_events
from persia_cli.drill.damage import send_damaged
from persia_cli.drill.job import DrilledJob
from persia_cli.drill.plan import LAUNCHER, Disturbance
from persia_cli.drill.processes import wait_until_ended
from persia_cli.drill.result import StrikeResult
from persia_cli.drill.saves import fill_disk
from persia_cli.drill.strikes import cut_for, kill, slow, stop
from persia_cli.errors import RoleError, UserError
from persia_cli.launch.running import RunningProcess

POLL_S = 0.005
EVENTS_S = 0.1
"""Seconds between two looks into the events of the job."""
END_S = 30.0
"""Seconds that processes have to end after their launcher was killed."""


class EndedMeanwhileError(Exception):
    """The job has ended while the drill waited for something else."""


@dataclass
class Exercise:
    """The disturbances of one job. `follow` is called many times a second with the last step and what is waited for."""

    job: DrilledJob
    words: Sequence[str]
    """The words of `persia train`, by which the job goes on after nobody is left."""
    limit_s: float
    """Seconds that the job has to reach a step, to recover, to end."""
    follow: Callable[[int, str], None]
    on_result: Callable[[StrikeResult], None]
    results: list[StrikeResult] = field(default_factory=list)
    _looked_s: float = 0.0

    def wait(self, seconds: float) -> None:
        """Wait so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.follow(self.job.step, "disturbing")
            time.sleep(min(left, 0.05))

    def until(self, done: Callable[[], bool], what: str, or_end: bool = False, while_it_moves: bool = False) -> None:
        """Wait until something is done, at most `limit_s`, or so long after the last step with `while_it_moves`.

        Then raises RoleError. If the job ends first, raises EndedMeanwhileError, or returns with `or_end`.
        """
        step, since = self.job.step, time.monotonic()
        while not done():
            if self.job.ended:
                if or_end or done():
                    return
                raise EndedMeanwhileError
            now, at = time.monotonic(), self.job.step
            if at != step and while_it_moves:
                step, since = at, now
            if now - since > self.limit_s:
                raise RoleError(f"the drill waited {self.limit_s:g} s for {what}")
            self.follow(at, what)
            time.sleep(POLL_S)

    def wait_for_begin(self) -> None:
        """Wait until the job trains; raises PersiaError if it ends before it does."""
        try:
            self.until(lambda: self.job.step >= 0, "the job to train")
        except EndedMeanwhileError:
            kind = UserError if self.job.is_refused else RoleError
            raise kind(self.job.ended_before("it could be disturbed")) from None

    def carry_out(self, disturbances: Sequence[Disturbance]) -> None:
        """Disturb the job by each in turn, and wait until it has recovered; stops where it does not."""
        for disturbance in disturbances:
            step = disturbance.step
            try:
                if step is not None:
                    self._until_step(step)
            except EndedMeanwhileError:
                raise RoleError(self.job.ended_before(f"step {step:,}")) from None
            self.results.append(result := self._strike(disturbance))
            self.on_result(result)
            if result.problem:
                return

    def _until_step(self, step: int) -> None:
        self.until(lambda: self.job.step >= step, f"step {step:,}", while_it_moves=True)

    def _strike(self, disturbance: Disturbance) -> StrikeResult:
        result = StrikeResult(disturbance, self.job.step, time.time())
        try:
            self._disturb(disturbance, result)
            self.until(lambda: self._trains_on(result), "the job to train on", or_end=True)
        except EndedMeanwhileError:
            result.problem = self.job.outcome() or "the job ended before it had recovered"
        except RoleError as error:
            result.problem = str(error)
        measure_times(result, self.job.metrics())
        return result

    def _disturb(self, disturbance: Disturbance, result: StrikeResult) -> None:
        match disturbance.kind:
            case "kill" | "node" if disturbance.ends_all:
                self._end_all(disturbance, result)
            case "kill":
                targets = self._targets(disturbance)
                kill(targets)
                result.over = time.time()
                self._await_recovery(disturbance, result)
            case "stop" | "slow":
                strike = stop if disturbance.kind == "stop" else slow
                strike(self._targets(disturbance), disturbance.for_s, self.wait)
                result.over = time.time()
            case "cut":
                broken = cut_for(lambda: self._living(disturbance), disturbance.for_s, self.wait)
                result.over, result.text = time.time(), f"{broken} connections were broken"
            case "corrupt-frame":
                self._damage(disturbance, result)
            case "fill-disk":
                fill_disk(self.job, result, self.until)

    def _targets(self, disturbance: Disturbance) -> list[RunningProcess]:
        """Return the targets' processes; one that is being replaced is waited for."""
        self.until(lambda: len(self._living(disturbance)) == len(disturbance.targets), "the targets to be there")
        return self._living(disturbance)

    def _living(self, disturbance: Disturbance) -> list[RunningProcess]:
        running = self.job.replicas()
        return [running[name] for name in disturbance.targets if name in running]

    def _events_after(self, result: StrikeResult, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.job.events() if event["event"] == kind and event["time"] >= result.at]

    def _await_recovery(self, disturbance: Disturbance, result: StrikeResult) -> None:
        """Wait until the job has recorded that it has recovered from each death, or as a whole."""

        def has_recovered() -> bool:
            if not self._is_time():
                return False
            recovered = self._events_after(result, "recovered")
            names = {event["replica"] for event in recovered}
            return names >= set(disturbance.targets) or any("checkpoint" in event for event in recovered)

        self.until(has_recovered, "the job to recover")
        take_from_events(result, self._events_after(result, "recovered"), self._events_after(result, "died"))

    def _end_all(self, disturbance: Disturbance, result: StrikeResult) -> None:
        """Kill the launcher, or everybody; see that all end, and start the job again."""
        launcher, replicas = self.job.launcher, list(self.job.replicas().values())
        kill([*([launcher] if launcher else []), *(replicas if LAUNCHER not in disturbance.targets else [])])
        left = wait_until_ended([*([launcher] if launcher else []), *replicas], END_S)
        if left:
            result.problem = f"{len(left)} processes live on after the launcher was killed"
            kill(left)
        result.over = time.time()
        result.noticed_s = round(result.over - result.at, 3)
        result.text = f"all {len(replicas) + 1} processes had ended, and the job was started again"
        self.job.start([*self.words, "resume=auto"])

    def _damage(self, disturbance: Disturbance, result: StrikeResult) -> None:
        [target] = self._targets(disturbance)
        role = disturbance.targets[0].rpartition("-")[0]
        sent, refused_s = send_damaged(target, role, list(self.job.replicas().values()), self.wait)
        result.over = time.time()
        result.noticed_s = None if refused_s is None else round(refused_s, 3)
        result.damaged = sent
        result.text = f"{sent} damaged messages were sent"
        if refused_s is None:
            result.problem = f"{disturbance.targets[0]} refused none of {sent} damaged messages"

    def _is_time(self) -> bool:
        """Return True once in a while: records are long, and are not to be read all the time."""
        now = time.monotonic()
        if now - self._looked_s < EVENTS_S:
            return False
        self._looked_s = now
        return True

    def _trains_on(self, result: StrikeResult) -> bool:
        """Return whether the job has trained since the disturbance was over, and gone further."""
        if not self._is_time():
            return False
        measured = StrikeResult(result.disturbance, result.step, result.at, result.over)
        measure_times(measured, self.job.metrics())
        return measured.recovered_s is not None and measured.caught_up_s is not None
