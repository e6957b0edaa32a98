"""`persia bench costs`: CPU seconds of each role in steps of real jobs, and of others for a check."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from persia_cli.bench.machine import Neighbours, this_machine
from persia_cli.bench.turns import TurnJob
from persia_cli.config.schema import Ffnn, Run
from persia_cli.cost.frequency import Frequency, sample_frequency
from persia_cli.cost.measurements import FORMAT, MeasuredStep, Measurements, step_size, subject_of
from persia_cli.cost.model import LOADER, TERMS
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.source import open_source
from persia_cli.engines.readiness import ask_torch
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import ConfigError, UserError
from persia_cli.observe.usage import cpu_seconds
from persia_cli.plan.checks import require_network
from persia_cli.plan.embedding import embedding_layout
from persia_cli.version import __version__

SMALL, MIDDLE, LARGE = 512, 2048, 4096
"""Batch sizes: the smallest and the largest are measured, the middle one is predicted by a check."""
DIM_TIMES = 4
SAMPLES = 1 << 15
"""Samples of a measured turn."""
TURNS = 3
RING = 8
"""Most batches that repeat from memory; a turn has as many, so all rows exist after the first one."""
MEMORY = 512 * 2**20
"""Most memory of rows while costs are measured. Servers collapse it into huge pages, once, and 4 GiB take seconds."""
READ_BATCHES = 4
TINY, OTHER = (16,), (256, 128)
"""Hidden layers of the networks that are measured, and predicted by a check, besides the run's own."""


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration to measure, with the weights of its network."""

    name: str
    run: Run
    weights: int


def measure_costs(
    run: Run, note: Callable[[str], None], with_check: bool = False
) -> tuple[Measurements, list[MeasuredStep]]:
    """Measure the costs of a run's roles; `with_check` also the configurations that a check predicts, in alternation.

    Jobs run one after another. Raise UserError for a cluster that is not local.
    """
    if not run.cluster.has_processes_here:
        raise UserError("costs are measured in processes of this machine: use cluster=local")
    run = _changed(run, batch=LARGE, cluster={"nn_workers": 1, "embedding_workers": 1, "data_loaders": 1})
    small = {"memory": min(MEMORY, run.embedding.memory), "capacity": None}
    run = run.model_copy(
        update={
            "train": run.train.model_copy(update={"device": "cpu"}),
            "embedding": run.embedding.model_copy(update=small),
        }
    )
    note("sampling the ids of the training rows")
    frequency = sample_frequency(run)
    fitted = _cases(_fitted(run))
    others = _cases(_predicted(run)) if with_check else []
    found: dict[str, MeasuredStep] = {}
    with terminating_interrupts():
        for case in _alternating(fitted, others):
            note(f"measuring {case.name}")
            found[case.name] = measure_case(case, frequency)
    steps = tuple(found[case.name] for case in fitted)
    measured = Measurements(FORMAT, __version__, this_machine(), subject_of(run), steps, frequency)
    return measured, [found[case.name] for case in others]


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


def _fitted(run: Run) -> dict[str, Run]:
    """Return the configurations that the costs are fitted to, those whose networks can be built."""
    dim = run.model.dim
    cases = {
        f"batch {SMALL}, dim {dim}": _changed(run, batch=SMALL),
        f"batch {SMALL}, dim {dim}, 4 servers": _changed(run, batch=SMALL, servers=4),
        f"batch {LARGE}, dim {dim}": run,
        f"batch {LARGE}, dim {dim * DIM_TIMES}": _changed(run, dim=dim * DIM_TIMES),
        f"batch {LARGE}, dim {dim}, ffnn {TINY[0]}": _changed(run, hidden=TINY),
        f"batch {LARGE}, dim {dim}, float16, 2 servers": _changed(run, wire="float16", servers=2),
    }
    return _buildable(cases)


def _predicted(run: Run) -> dict[str, Run]:
    """Return the configurations of a check: none of them is fitted."""
    dim = run.model.dim
    cases = {
        f"batch {SMALL * 2}, dim {dim}": _changed(run, batch=SMALL * 2),
        f"batch {MIDDLE}, dim {dim * 2}": _changed(run, batch=MIDDLE, dim=dim * 2),
        f"batch {MIDDLE}, dim {dim}, 2 servers": _changed(run, batch=MIDDLE, servers=2),
        f"batch {MIDDLE}, dim {dim}, bfloat16": _changed(run, batch=MIDDLE, wire="bfloat16"),
        f"batch {MIDDLE}, dim {dim}, ffnn {OTHER[0]}-{OTHER[1]}": _changed(run, batch=MIDDLE, hidden=OTHER),
        f"batch {LARGE * 2}, dim {dim * 2}, float16": _changed(run, batch=2 * LARGE, dim=2 * dim, wire="float16"),
    }
    return _buildable(cases)


def _changed(
    run: Run,
    batch: int | None = None,
    dim: int | None = None,
    hidden: tuple[int, ...] | None = None,
    wire: str = "float32",
    servers: int = 1,
    cluster: dict[str, Any] | None = None,
) -> Run:
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


def _buildable(cases: dict[str, Run]) -> dict[str, Run]:
    found = {}
    for name, run in cases.items():
        with suppress(ConfigError):
            require_network(run, embedding_layout(run))
            found[name] = run
    return found


def _cases(runs: dict[str, Run]) -> list[Case]:
    weights = dense_weights(list(runs.values()))
    return [Case(name, run, number) for (name, run), number in zip(runs.items(), weights, strict=True)]


def dense_weights(runs: Sequence[Run]) -> list[int]:
    """Return the weights of the dense network of each run; raises ConfigError for one that cannot be built."""
    numbers = []
    for found in ask_torch("summary", runs):
        if isinstance(found, str):
            raise ConfigError(found)
        numbers.append(sum(layer["parameters"] for layer in found["layers"]))
    return numbers


def _alternating(first: Sequence[Case], second: Sequence[Case]) -> list[Case]:
    """Return all cases, one of each list in turn, so that a disturbance affects both."""
    longer = max(len(first), len(second))
    return [case for number in range(longer) for cases in (first, second) for case in cases[number : number + 1]]
