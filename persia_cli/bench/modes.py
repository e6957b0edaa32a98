"""`persia bench modes`: speed and accuracy of the modes, with and without a delay of every embedding message."""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, get_args

from pydantic import TypeAdapter

from persia_cli.bench.delay_line import delay_process
from persia_cli.bench.machine import Neighbours
from persia_cli.bench.turns import INTERVALS
from persia_cli.config.schema import Mode, Run
from persia_cli.data.facts import DatasetFacts, inspect
from persia_cli.errors import PersiaError, UserError
from persia_cli.launch.job import JobResult, prepare_run_dir, result_of
from persia_cli.launch.local import Processes
from persia_cli.launch.processes import terminating_interrupts
from persia_cli.launch.readiness import require_ready
from persia_cli.plan.job import JobPlan, Replica, plan_job
from persia_cli.wire.addresses import ipc_address
from persia_cli.wire.folder import private_directory

DELAYED = ("embedding-worker", "embedding-server")
"""Roles behind a delay line: all messages with ids, rows or gradients go to or come from one of them."""
LOOK_S = 0.05
BATCH, STALENESS, DELAY_MS, STEP_MS = 512, 8, 5.0, 10.0
"""Settings of the run that the targets are set for; the last is the longest dense step."""
KEEPS, TIMES_SYNC = 0.9, 3.0
"""Fraction of its undelayed speed that hybrid must keep, and the multiple of sync's speed that it must reach."""


@dataclass(frozen=True, slots=True)
class ModeFigures:
    """A mode under a delay: medians over its runs."""

    mode: str
    delay_ms: float
    samples_per_s: float
    least: float
    most: float
    keeps: float
    """Fraction of its speed without delay."""
    times_sync: float | None
    """Speed over that of sync under the same delay; None if sync is not measured."""
    auc: float | None
    """Mean over its runs of the evaluation at their end."""
    auc_spread: float | None
    staleness: float


@dataclass(frozen=True, slots=True)
class Target:
    """A figure of hybrid training under delay, and the least value that it must reach."""

    what: str
    value: float
    at_least: float
    passed: bool


@dataclass(frozen=True, slots=True)
class ModesReport:
    """All modes and delays; for a run without targets, `targets` is empty and `unjudged` gives the reason."""

    runs: int
    steps: int
    """Steps of a run; the first fifth does not count for the speed."""
    figures: list[ModeFigures]
    targets: list[Target]
    unjudged: str
    busy_cores: float
    """Cores that other processes used, on average."""


@dataclass(frozen=True, slots=True)
class _Ran:
    samples_per_s: float
    auc: float | None
    staleness: float


def offered_modes(run: Run) -> dict[str, Mode]:
    """Return every mode by kind; modes with a staleness take the run's."""
    staleness = {"staleness": run.mode.staleness} if hasattr(run.mode, "staleness") else {}
    kinds = get_args(get_args(Mode)[0])
    adapter: TypeAdapter[Mode] = TypeAdapter(Mode)
    modes = {}
    for kind in kinds:
        name = get_args(kind.model_fields["kind"].annotation)[0]
        settings = staleness if "staleness" in kind.model_fields else {}
        modes[name] = run.mode if isinstance(run.mode, kind) else adapter.validate_python({"kind": name} | settings)
    return modes


def measure_modes(
    run: Run, delay_ms: float, steps: int, rounds: int, note: Callable[[str], None], modes: Sequence[str] = ()
) -> ModesReport:
    """Run every mode without and with delay, `rounds` times in alternating order; each run is a separate job.

    `modes` selects some of them. All jobs use the same delay lines, with 0 ms where there is no delay. Raises
    UserError for runs that cannot be measured like this.
    """
    if run.cluster.kind != "local":
        raise UserError("delays are put between processes: use cluster=local")
    offered = offered_modes(run)
    unknown = [mode for mode in modes if mode not in offered]
    if unknown:
        raise UserError(f"there is no mode {unknown[0]!r}; there are {', '.join(offered)}")
    facts = inspect(run.dataset)
    plans = {mode: _plan(run.model_copy(update={"mode": offered[mode]}), facts, steps) for mode in (modes or offered)}
    require_ready([*plans.values()])
    cases = [(mode, delay) for delay in (0.0, delay_ms) for mode in (modes or offered)]
    ran: dict[tuple[str, float], list[_Ran]] = {case: [] for case in cases}
    neighbours, used = Neighbours(), os.times()
    with terminating_interrupts():
        for number in range(rounds):
            for mode, delay in cases:
                note(f"run {number + 1} of {rounds}: {mode}, {delay:g} ms")
                ran[mode, delay].append(_run(plans[mode], delay))
            cases.reverse()
    children = sum(os.times()[2:4]) - sum(used[2:4])
    busy = max(0.0, neighbours.cores() - children / neighbours.seconds())
    figures = [_figures(ran, mode, delay) for delay in (0.0, delay_ms) for mode in (modes or offered)]
    targets, unjudged = _targets(run, delay_ms, figures)
    return ModesReport(rounds, steps, figures, targets, unjudged, busy)


def _plan(run: Run, facts: DatasetFacts, steps: int) -> JobPlan:
    """Plan a job of `steps` steps that is evaluated at its end."""
    per_epoch = -(-facts.train_rows // run.train.batch_size)
    train = {"steps": steps, "epochs": -(-steps // per_epoch), "log_every_steps": max(1, steps // INTERVALS)}
    run = run.model_copy(
        update={
            "train": run.train.model_copy(update=train),
            "eval": run.eval.model_copy(update={"every_steps": None}),
            "checkpoint": run.checkpoint.model_copy(update={"every_steps": None, "at_end": False}),
            "cluster": run.cluster.model_copy(update={"transport": "ipc"}),
        }
    )
    return plan_job(run, facts, "train", Path("bench"))


def _run(plan: JobPlan, delay_ms: float) -> _Ran:
    """Train and evaluate one job with delay lines in front of its embedding workers and servers."""
    with tempfile.TemporaryDirectory(prefix="persia-bench-") as folder:
        result = _launch(replace(plan, job=replace(plan.job, run_dir=folder)), delay_ms)
    return _read(result)


def _launch(plan: JobPlan, delay_ms: float) -> JobResult:
    prepare_run_dir(plan)
    with private_directory() as sockets:
        behind = [replica.name for replica in plan.replicas if replica.role in DELAYED]
        fronts = {ipc_address(sockets, f"{name}.front"): ipc_address(sockets, name) for name in behind}

        def advertised(replica: Replica) -> str | None:
            return ipc_address(sockets, f"{replica.name}.front") if replica.role in DELAYED else None

        processes = Processes(plan, sockets, advertised)
        with delay_process(fronts, delay_ms, os.getpid(), processes.token_file):
            try:
                processes.start()
                while processes.running:
                    time.sleep(LOOK_S)
                processes.check()
            finally:
                processes.stop()
    return result_of(plan.run_dir)


def _read(result: JobResult) -> _Ran:
    trained: list[dict[str, Any]] = [line for line in result.metrics if line["split"] == "train"]
    if len(trained) < 2:
        raise PersiaError("the job wrote fewer than two lines of metrics; measure more steps")
    pairs = list(pairwise(trained))
    sizes = [after["samples"] - before["samples"] for before, after in pairs]
    seconds = sum(size / after["samples_per_s"] for size, (_, after) in zip(sizes, pairs, strict=True))
    evaluated = [line for line in result.metrics if line["split"] == "eval"]
    auc = next((value for key, value in (evaluated or [{}])[-1].items() if key.startswith("auc")), None)
    return _Ran(sum(sizes) / seconds, auc, trained[-1]["staleness_mean"])


def _figures(ran: dict[tuple[str, float], list[_Ran]], mode: str, delay_ms: float) -> ModeFigures:
    def speed(mode: str, delay_ms: float) -> float:
        return median(each.samples_per_s for each in ran[mode, delay_ms])

    own = ran[mode, delay_ms]
    rates = [each.samples_per_s for each in own]
    aucs = [each.auc for each in own if each.auc is not None]
    return ModeFigures(
        mode=mode,
        delay_ms=delay_ms,
        samples_per_s=median(rates),
        least=min(rates),
        most=max(rates),
        keeps=speed(mode, delay_ms) / speed(mode, 0.0),
        times_sync=speed(mode, delay_ms) / speed("sync", delay_ms) if ("sync", delay_ms) in ran else None,
        auc=fmean(aucs) if aucs else None,
        auc_spread=max(aucs) - min(aucs) if aucs else None,
        staleness=median(each.staleness for each in own),
    )


def _targets(run: Run, delay_ms: float, figures: Sequence[ModeFigures]) -> tuple[list[Target], str]:
    """Return hybrid's targets, met or missed; where they do not apply, none and the reason."""
    found = {(each.mode, each.delay_ms): each for each in figures}
    hybrid, free = found.get(("hybrid", delay_ms)), found.get(("hybrid", 0.0))
    if hybrid is None or free is None or hybrid.times_sync is None:
        return [], "hybrid and sync are not both measured"
    staleness = run.mode.staleness if hasattr(run.mode, "staleness") else None
    if (run.train.batch_size, staleness, delay_ms) != (BATCH, STALENESS, DELAY_MS):
        return [], f"targets are set for batch {BATCH}, staleness {STALENESS} and a delay of {DELAY_MS:g} ms"
    step_ms = run.train.batch_size / free.samples_per_s * 1e3
    if step_ms > STEP_MS:
        return [], f"targets are set for steps of at most {STEP_MS:g} ms, and hybrid's take {step_ms:.1f} ms undelayed"
    kept = Target("hybrid keeps of its undelayed speed", hybrid.keeps, KEEPS, hybrid.keeps >= KEEPS)
    times = Target("hybrid is times sync", hybrid.times_sync, TIMES_SYNC, hybrid.times_sync >= TIMES_SYNC)
    return [kept, times], ""
