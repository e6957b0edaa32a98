"""`persia bench tier`: the greatest speed of the embedding tier, with no network in the NN worker, against FBGEMM."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np

from persia_cli.bench.machine import Neighbours, available_bytes
from persia_cli.bench.null_worker import NullWorker
from persia_cli.bench.portions import portion_shape
from persia_cli.bench.stages import Stage
from persia_cli.bench.turns import INTERVALS, TurnFigures, TurnJob, turn_steps
from persia_cli.config.schema import Adagrad, RowwiseAdagrad, Run, Sgd
from persia_cli.data.facts import inspect
from persia_cli.data.source import open_source
from persia_cli.errors import UserError
from persia_cli.kernels.memory import keep_freed_memory
from persia_cli.launch.job import SWITCH_INTERVAL_S
from persia_cli.launch.processes import terminating_interrupts
from persia_cli.observe.usage import cpu_seconds

TARGET = 1.2
"""Target of the tier's ids per second over FBGEMM's, with row-wise Adagrad and float16 on the wire."""
OURS = "persia"
SPARE = 0.85


@dataclass(frozen=True, slots=True)
class TierSide:
    """One competitor: ids per second, the median over all rounds, and the slowest and fastest of them."""

    name: str
    ids_per_s: float
    least: float
    most: float
    cpu_ms: dict[str, float]
    """CPU milliseconds per batch of each process."""


@dataclass(frozen=True, slots=True)
class TierReport:
    """The figures of the tier and of FBGEMM; `ratio` is to the faster of FBGEMM's thread counts."""

    rounds: int
    steps: int
    optimizer: str
    wire: str
    sides: list[TierSide]
    ratio: float | None
    """None if FBGEMM is not installed."""
    target: float | None
    passed: bool | None
    stages: list[Stage]
    busy_cores: float


def measure_tier(run: Run, steps: int, rounds: int, ring: int, note: Callable[[str], None]) -> TierReport:
    """Measure in alternating turns on one ring of batches; raises UserError for runs that cannot be compared."""
    kind = run.optimizer.embedding.kind
    if not isinstance(run.optimizer.embedding, Adagrad | RowwiseAdagrad | Sgd):
        raise UserError(
            f"FBGEMM has no {kind} on the CPU; use optimizer.embedding.kind=rowwise_adagrad, adagrad or sgd"
        )
    if run.cluster.kind != "local" or run.cluster.nn_workers > 1:
        raise UserError("the tier is measured in processes with one NN worker: use cluster=local cluster.nn_workers=1")
    facts = inspect(run.dataset)
    ring = min(ring, facts.train_rows // run.train.batch_size)
    keep_freed_memory()
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with terminating_interrupts(), ExitStack() as exit_stack:
            baselines = _baselines(run, ring, steps, note)
            note("starting the job")
            job = exit_stack.enter_context(TurnJob(run, facts, steps, rounds + 1, ring, NullWorker))
            return _measure(run, job, baselines, steps, rounds, note)
    finally:
        sys.setswitchinterval(before)


def _measure(
    run: Run,
    job: TurnJob,
    baselines: dict[str, Callable[[], TurnFigures]],
    steps: int,
    rounds: int,
    note: Callable[[str], None],
) -> TierReport:
    takers: dict[str, Callable[[], TurnFigures]] = {OURS: lambda: _turn(job)} | baselines
    taken: dict[str, list[TurnFigures]] = {name: [] for name in takers}
    order = list(takers)
    neighbours, own = Neighbours(), job.cpu_seconds()
    for number in range(rounds + 1):
        note(f"round {number} of {rounds}" if number else "warming up")
        for name in order:
            figures = takers[name]()
            if number:
                taken[name].append(figures)
        order.reverse()
    busy = max(0.0, neighbours.cores() - (job.cpu_seconds() - own) / neighbours.seconds())
    features = len(portion_shape(run).sizes)
    sides = [_side(name, figures, features, run.train.batch_size) for name, figures in taken.items()]
    fastest = max((side.ids_per_s for side in sides[1:]), default=None)
    ratio = None if fastest is None else sides[0].ids_per_s / fastest
    judged = ratio is not None and run.embedding.wire == "float16" and run.optimizer.embedding.kind == "rowwise_adagrad"
    judged = judged and run.cluster.embedding_servers == 2
    passed = ratio >= TARGET if judged and ratio is not None else None
    kind, wire = run.optimizer.embedding.kind, run.embedding.wire
    return TierReport(rounds, steps, kind, wire, sides, ratio, TARGET if judged else None, passed, job.finish(), busy)


def _turn(job: TurnJob) -> TurnFigures:
    before = cpu_seconds()
    figures = job.turn()
    # The client's CPU time is that of the whole turn, so it is scaled to the measured intervals.
    client = (cpu_seconds() - before) * (INTERVALS - 1) / INTERVALS
    return TurnFigures(figures.samples, figures.seconds, figures.cpu_s | {"client": client}, figures.staleness)


def _baselines(run: Run, ring: int, steps: int, note: Callable[[str], None]) -> dict[str, Callable[[], TurnFigures]]:
    """Return FBGEMM with one thread and with all cores, on the run's tables and batches; empty if not installed."""
    from persia_cli.bench.baselines import fbgemm
    from persia_cli.bench.baselines.tables import tensor, threads

    if not fbgemm.is_installed():
        note("FBGEMM is not installed (pip install 'persia[compare]'), so there is nothing to compare with")
        return {}
    note("preparing FBGEMM")
    optimizer, shape = run.optimizer.embedding, portion_shape(run)
    assert isinstance(optimizer, Adagrad | RowwiseAdagrad | Sgd)
    needed = sum(shape.sizes) * run.model.dim * 8
    if needed > SPARE * available_bytes():
        raise UserError(f"FBGEMM's tables need {needed / 2**30:.1f} GiB, more than is free; use smaller tables")
    eps = 0.0 if isinstance(optimizer, Sgd) else optimizer.eps
    tables = fbgemm.Fbgemm(shape.sizes, run.model.dim, optimizer.kind, shape.samples, optimizer.lr, eps)
    source = open_source(run.dataset, "train", run.seed)
    sizes = np.array(shape.sizes, np.uint64).reshape(-1, 1)
    batches = []
    for slot in range(ring):
        batch = source.read(0, slot * shape.samples, (slot + 1) * shape.samples)
        shape.portion(batch)
        batches.append(tables.ready((batch.ids.reshape(len(shape.sizes), -1) % sizes).astype(np.int64)))
    source.close()
    rng = np.random.default_rng(run.seed)
    values = rng.standard_normal((shape.samples, len(shape.sizes), run.model.dim), np.float32) * np.float32(1e-3)
    gradient = tensor(values)

    def turn(count: int) -> TurnFigures:
        with threads(count):
            total = turn_steps(steps)
            warm = total // INTERVALS
            for step in range(warm):
                tables.step(batches[step % ring], gradient)
            begin, used = perf_counter(), cpu_seconds()
            for step in range(warm, total):
                tables.step(batches[step % ring], gradient)
            seconds = perf_counter() - begin
            return TurnFigures((total - warm) * shape.samples, seconds, {"fbgemm": cpu_seconds() - used})

    cores = len(os.sched_getaffinity(0))
    names = {count: f"fbgemm, {count} thread{'s' if count > 1 else ''}" for count in sorted({1, cores})}
    return {name: partial(turn, count) for count, name in names.items()}


def _side(name: str, taken: list[TurnFigures], features: int, batch_size: int) -> TierSide:
    rates = [figures.samples_per_s * features for figures in taken]
    cpu = {
        process: median(figures.cpu_s[process] / figures.samples for figures in taken) * batch_size * 1e3
        for process in taken[0].cpu_s
    }
    return TierSide(name, median(rates), min(rates), max(rates), cpu)
