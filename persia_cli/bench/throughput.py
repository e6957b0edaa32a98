"""`persia bench throughput`: samples per second of a job from end to end, and the cost of each role."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from persia_cli.bench.rounds import samples_and_seconds, without_ends
from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.data.read.facts import DatasetFacts, inspect
from persia_cli.engines.engine import engine_here
from persia_cli.engines.readiness import require_ready
from persia_cli.errors import PersiaError
from persia_cli.observe.journal import EVENTS, METRICS, Tail
from persia_cli.observe.machine import cpu_seconds_of, resident_bytes_of
from persia_cli.plan.job import JobPlan, plan_job


@dataclass(frozen=True, slots=True)
class RoleCost:
    """The cost of one process: CPU seconds of the measured steps, and resident bytes at their end."""

    replica: str
    cpu_s: float
    rss: int


@dataclass(frozen=True, slots=True)
class Throughput:
    """The speed of a job over its measured steps; starting and warming up do not count."""

    name: str
    mode: str
    steps: int
    samples: int
    seconds: float
    samples_per_s: float
    stand_in: str | None
    """The place of the missing data that generated samples replaced."""
    roles: list[RoleCost]


def measure(run: Run, steps: int) -> Throughput:
    """Train `steps` steps to warm up and `steps` more that are timed, without evaluation or checkpoints.

    An embedded job is one process, and so one row of `roles`.
    """
    plan = _plan(run, inspect(run.dataset), steps)
    require_ready([plan])
    with tempfile.TemporaryDirectory(prefix="persia-bench-") as folder:
        plan = replace(plan, job=replace(plan.job, run_dir=folder))
        stopwatch = Stopwatch(plan)
        engine_here(run.cluster).launch(plan, stopwatch.follow)
    return stopwatch.result()


def _plan(run: Run, facts: DatasetFacts, steps: int) -> JobPlan:
    run = without_ends(run, facts, 2 * steps, steps)
    return plan_job(run, replace(facts, eval_rows=0), "train", Path("bench"))


class Stopwatch:
    """Follows a job's journals and reads the processes' CPU clocks when the measured steps begin and end."""

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        self._metrics = Tail(plan.run_dir / METRICS)
        self._events = Tail(plan.run_dir / EVENTS)
        self._pids: dict[str, int] = {}
        self._lines: list[dict[str, Any]] = []
        self._cpu: list[dict[str, float]] = []
        self._rss: dict[str, int] = {}

    def follow(self) -> None:
        """Read the lines written since the last call."""
        for event in self._events.new():
            if event["event"] == "ready":
                joined = {replica["name"]: replica["pid"] for replica in event["replicas"]}
                self._pids = {replica.name: joined[replica.name] for replica in self._plan.replicas}
                if self._plan.run.cluster.is_one_process:
                    self._pids = {"all roles": next(iter(self._pids.values()))}
        for line in self._metrics.new():
            self._lines.append(line)
            self._cpu.append({name: cpu_seconds_of(pid) for name, pid in self._pids.items()})
            self._rss = {name: resident_bytes_of(pid) for name, pid in self._pids.items()}

    def result(self) -> Throughput:
        """Return the measurement; raises PersiaError if the job ended without reporting both intervals."""
        if len(self._lines) != 2:
            raise PersiaError(
                f"the job wrote {len(self._lines)} lines of metrics where 2 were expected; nothing was measured"
            )
        before, after = self._lines
        dataset = self._plan.run.dataset
        samples, seconds = samples_and_seconds(self._lines)
        return Throughput(
            name=self._plan.run.name,
            mode=self._plan.run.mode.kind,
            steps=after["step"] - before["step"],
            samples=samples,
            seconds=seconds,
            samples_per_s=after["samples_per_s"],
            stand_in=dataset.place if self._plan.facts.stand_in and isinstance(dataset, ParquetDataset) else None,
            roles=[
                RoleCost(name, round(cpu - self._cpu[0][name], 3), self._rss[name])
                for name, cpu in self._cpu[1].items()
            ],
        )
