"""`persia bench modes`: speed and accuracy of the modes, without and with links between the roles."""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter

from persia_cli.bench.delay_line import NetworkLink, delay_process
from persia_cli.bench.result import Result, Side
from persia_cli.bench.rounds import INTERVALS, MeasuredTurn, samples_and_seconds, side_of, take_turns, without_ends
from persia_cli.config.schema import Mode, Run
from persia_cli.data.read.facts import DatasetFacts, inspect
from persia_cli.disk import own_folder
from persia_cli.engines.job import JobResult, prepare_run_dir, result_of
from persia_cli.engines.local import Processes
from persia_cli.engines.readiness import require_ready
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import PersiaError, UserError
from persia_cli.plan.job import JobPlan, Replica, plan_job
from persia_cli.wire.addresses import SOCKETS, ipc_address

DELAYED = ("embedding-worker", "embedding-server")
"""Roles behind a delay line: all messages with ids, rows or gradients go to or come from one of them."""
LOOK_S = 0.05
HERE = NetworkLink(0.0)
"""No link at all, but that of this machine."""
UNDELAYED = "itself without delay"
HOSTS_MBIT = (1000.0, 100.0)
"""Bandwidths of the networks between hosts that are usual."""


def links_between_hosts(delay_ms: float) -> list[NetworkLink]:
    """Return links of hosts with usual networks, each without and with a delay."""
    return [NetworkLink(delay, mbit) for mbit in HOSTS_MBIT for delay in dict.fromkeys((0.0, delay_ms))]


def offered_modes(run: Run) -> dict[str, Mode]:
    """Return every mode by kind; modes with a staleness take the run's."""
    staleness = {"staleness": run.mode.staleness} if hasattr(run.mode, "staleness") else {}
    adapter: TypeAdapter[Mode] = TypeAdapter(Mode)
    modes = {}
    for kind in get_args(get_args(Mode)[0]):
        name = get_args(kind.model_fields["kind"].annotation)[0]
        settings = staleness if "staleness" in kind.model_fields else {}
        modes[name] = run.mode if isinstance(run.mode, kind) else adapter.validate_python({"kind": name} | settings)
    return modes


def measure_modes(
    run: Run, links: Sequence[NetworkLink], steps: int, rounds: int, note: Callable[[str], None]
) -> dict[NetworkLink, Result]:
    """Run every mode without and with each link, `rounds` times in alternating order; each run is a separate job.

    Return the results by link. All jobs use the same delay lines, which pass on at once where there is no link; where
    a bandwidth is limited, no job passes arrays in shared memory. Raises UserError for runs that cannot be measured
    like this.
    """
    if not run.cluster.has_processes_here:
        raise UserError("delays are put between processes: use cluster=local")
    if any(link.is_limited for link in links):
        run = run.model_copy(update={"cluster": run.cluster.model_copy(update={"shared_memory": False})})
    facts, modes = inspect(run.dataset), offered_modes(run)
    plans = {mode: _plan(run.model_copy(update={"mode": modes[mode]}), facts, steps) for mode in modes}
    require_ready([*plans.values()])
    cases = {f"{mode}, {link.label}": (mode, link) for link in (HERE, *links) for mode in modes}
    with terminating_interrupts():
        takers = {name: partial(_run, plans[mode], link) for name, (mode, link) in cases.items()}
        turns = take_turns(takers, rounds, note, _children_cpu_seconds, warm_up=False)
    sides: dict[NetworkLink, dict[str, Side]] = {link: {} for _, link in cases.values()}
    for name, (mode, link) in cases.items():
        sides[link][mode] = side_of(mode, turns[name], run.train.batch)
    return {
        link: Result(link.label, run.name, "samples/s", _with_ratios(by_mode, sides[HERE]), rounds, steps)
        for link, by_mode in sides.items()
    }


def _with_ratios(sides: dict[str, Side], undelayed: dict[str, Side]) -> list[Side]:
    return [
        replace(
            side, ratios={UNDELAYED: side.median / undelayed[mode].median, "sync": side.median / sides["sync"].median}
        )
        for mode, side in sides.items()
    ]


def _children_cpu_seconds() -> float:
    """Return the CPU seconds of processes that this one started and that have ended."""
    return sum(os.times()[2:4])


def _plan(run: Run, facts: DatasetFacts, steps: int) -> JobPlan:
    """Plan a job of `steps` steps that is evaluated at its end."""
    run = without_ends(run, facts, steps, max(1, steps // INTERVALS))
    run = run.model_copy(update={"cluster": run.cluster.model_copy(update={"transport": "ipc"})})
    return plan_job(run, facts, "train", Path("bench"))


def _run(plan: JobPlan, link: NetworkLink) -> MeasuredTurn:
    """Train and evaluate one job with delay lines in front of its embedding workers and servers."""
    with tempfile.TemporaryDirectory(prefix="persia-bench-") as folder:
        result = _launch(replace(plan, job=replace(plan.job, run_dir=folder)), link)
    trained: list[dict[str, Any]] = [line for line in result.metrics if line["split"] == "train"]
    if len(trained) < 2:
        raise PersiaError("the job wrote fewer than two lines of metrics; measure more steps")
    evaluated = [line for line in result.metrics if line["split"] == "eval"]
    auc = next((value for key, value in (evaluated or [{}])[-1].items() if key.startswith("auc")), None)
    return MeasuredTurn(*samples_and_seconds(trained), {}, trained[-1]["staleness_mean"], auc)


def _launch(plan: JobPlan, link: NetworkLink) -> JobResult:
    prepare_run_dir(plan)
    with own_folder(SOCKETS) as sockets:
        behind = [replica.name for replica in plan.replicas if replica.role in DELAYED]
        fronts = {ipc_address(sockets, f"{name}.front"): ipc_address(sockets, name) for name in behind}

        def advertised(replica: Replica) -> str | None:
            return ipc_address(sockets, f"{replica.name}.front") if replica.role in DELAYED else None

        processes = Processes(plan, sockets, advertised)
        with delay_process(fronts, link, os.getpid(), processes.secret_file):
            try:
                processes.start()
                while processes.running:
                    time.sleep(LOOK_S)
                processes.check()
            finally:
                processes.stop()
    return result_of(plan.run_dir)
