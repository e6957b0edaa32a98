"""`persia bench costs`: CPU seconds of each role in steps of real jobs."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from persia_cli.bench.machine import Neighbours, this_machine
from persia_cli.bench.turns import TurnJob
from persia_cli.config.schema import Ffnn, Run
from persia_cli.cost.frequency import Frequency, sample_frequency
from persia_cli.cost.measurements import FORMAT, MeasuredStep, Measurements, settings_of, step_size
from persia_cli.cost.model import LOADER, TERMS
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.source import open_source
from persia_cli.engines.readiness import ask_torch
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import ConfigError, UserError
from persia_cli.observe.machine import cpu_seconds
from persia_cli.plan.checks import require_network
from persia_cli.plan.embedding import embedding_layout
from persia_cli.version import __version__

SMALL, LARGE = 512, 4096
"""Batch sizes."""
DIM_TIMES = 4
SAMPLES = 1 << 15
"""Samples of a measured turn."""
TURNS = 3
RING = 8
"""Most batches that repeat from memory; a turn has as many, so all rows exist after the first one."""
MEMORY = 512 * 2**20
"""Most memory of rows while costs are measured. Servers collapse it into huge pages, once, and 4 GiB take seconds."""
READ_BATCHES = 4
TINY = (16,)
"""Hidden layers of the network that is measured besides the run's own."""


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration to measure, with the weights of its network."""

    name: str
    run: Run
    weights: int


def measure_costs(run: Run, report: Callable[[str], None]) -> Measurements:
    """Measure the costs of a run's roles, in one job after another.

    Raise UserError for a cluster that is not local.
    """
    if not run.cluster.has_processes_here:
        raise UserError("costs are measured in processes of this machine: use cluster=local")
    run = changed(run, batch=LARGE, cluster={"nn_workers": 1, "embedding_workers": 1, "data_loaders": 1})
    small = {"memory": min(MEMORY, run.embedding.memory), "capacity": None}
    run = run.model_copy(
        update={
            "train": run.train.model_copy(update={"device": "cpu"}),
            "embedding": run.embedding.model_copy(update=small),
        }
    )
    report("sampling the ids of the training rows")
    frequency = sample_frequency(run)
    steps = []
    with terminating_interrupts():
        for case in cases_of(_configurations(run)):
            report(f"measuring {case.name}")
            steps.append(measure_case(case, frequency))
    return Measurements(FORMAT, __version__, this_machine(), settings_of(run), tuple(steps))


def measure_case(case: Case, frequency: Frequency) -> MeasuredStep:
    """Train some turns of a job and return the CPU seconds of a step; the loader's are those of reading and sending."""
    run, batch = case.run, case.run.train.batch
    facts = inspect(run.dataset)
    if facts.train_rows < batch:
        raise UserError(f"the data set has {facts.train_rows:,} training rows, and costs need {batch:,} in a batch")
    steps = max(RING, SAMPLES // batch)
    ring = min(RING, facts.train_rows // batch)
    with TurnJob(run, facts, steps, TURNS + 1, ring) as job:
        job.turn()
        neighbours = Neighbours(lambda: cpu_seconds() + job.cpu_seconds())
        turns = [job.turn() for _ in range(TURNS)]
        busy = neighbours.cores()
    samples, seconds = sum(turn.samples for turn in turns), sum(turn.seconds for turn in turns)
    cpu = dict.fromkeys(TERMS, 0.0)
    for turn in turns:
        for replica, used in turn.cpu_s.items():
            role = replica.rpartition("-")[0]
            if role in cpu:
                cpu[role] += used * batch / samples
    cpu[LOADER] += _reading_seconds(run)
    size = step_size(run, frequency, case.weights)
    # A role that used less than a tick of the clock is not free.
    cpu = {role: max(used, 1e-6) for role, used in cpu.items()}
    return MeasuredStep(case.name, size, cpu, samples / seconds, busy, run.train.threads)


def _reading_seconds(run: Run) -> float:
    """Return the CPU seconds of reading a batch."""
    source = open_source(run.dataset, "train", run.seed, run.links)
    size = run.train.batch
    try:
        batches = max(1, min(READ_BATCHES, source.rows // size - 1))
        source.read(0, 0, size)
        begin = time.process_time()
        for number in range(batches):
            source.read(0, number * size, (number + 1) * size)
        return (time.process_time() - begin) / batches
    finally:
        source.close()


def _configurations(run: Run) -> dict[str, Run]:
    """Return the configurations that the costs are fitted to."""
    dim = run.model.dim
    return {
        f"batch {SMALL}, dim {dim}": changed(run, batch=SMALL),
        f"batch {SMALL}, dim {dim}, 4 servers": changed(run, batch=SMALL, servers=4),
        f"batch {LARGE}, dim {dim}": run,
        f"batch {LARGE}, dim {dim * DIM_TIMES}": changed(run, dim=dim * DIM_TIMES),
        f"batch {LARGE}, dim {dim}, ffnn {TINY[0]}": changed(run, hidden=TINY),
        f"batch {LARGE}, dim {dim}, float16, 2 servers": changed(run, wire="float16", servers=2),
    }


def changed(
    run: Run,
    batch: int | None = None,
    dim: int | None = None,
    hidden: tuple[int, ...] | None = None,
    wire: str = "float32",
    servers: int = 1,
    cluster: dict[str, Any] | None = None,
) -> Run:
    """Return the run with another size of batch, rows, network or messages, or other replicas."""
    model: Any = run.model if hidden is None else Ffnn(kind="ffnn", dim=run.model.dim, hidden=hidden)
    if dim is not None:
        model = model.model_copy(update={"dim": dim})
    changes = {"embedding_servers": servers} | (cluster or {})
    return run.model_copy(
        update={
            "model": model,
            "train": run.train.model_copy(update={"batch_size": batch or run.train.batch}),
            "embedding": run.embedding.model_copy(update={"wire": wire}),
            "cluster": run.cluster.model_copy(update=changes),
        }
    )


def cases_of(runs: dict[str, Run]) -> list[Case]:
    """Return the configurations whose networks can be built."""
    buildable = {}
    for name, run in runs.items():
        with suppress(ConfigError):
            require_network(run, embedding_layout(run))
            buildable[name] = run
    weights = dense_weights(list(buildable.values()))
    return [Case(name, run, number) for (name, run), number in zip(buildable.items(), weights, strict=True)]


def dense_weights(runs: Sequence[Run]) -> list[int]:
    """Return the weights of the dense network of each run; raises ConfigError for one that cannot be built."""
    numbers = []
    for summary in ask_torch("summary", runs):
        if isinstance(summary, str):
            raise ConfigError(summary)
        numbers.append(sum(layer["parameters"] for layer in summary["layers"]))
    return numbers
