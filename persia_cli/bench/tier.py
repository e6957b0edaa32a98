"""`persia bench tier`: the greatest speed of the embedding tier, with no network in the NN worker, against FBGEMM."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import cycle

import numpy as np

from persia_cli.bench.breakdown import stages_of
from persia_cli.bench.machine import available_bytes
from persia_cli.bench.null_worker import NullWorker
from persia_cli.bench.portions import portion_shape, table_sizes
from persia_cli.bench.result import OURS, Result, with_ratios
from persia_cli.bench.rounds import INTERVALS, TurnFigures, side_of, take_turns, timed_turn, turn_steps
from persia_cli.bench.turns import TurnJob
from persia_cli.config.schema import Adagrad, RowwiseAdagrad, Run, Sgd
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.source import open_source
from persia_cli.engines.job import SWITCH_INTERVAL_S
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import UserError
from persia_cli.kernels.toolchain.memory import retain_freed_memory
from persia_cli.observe.machine import cpu_seconds

SPARE = 0.85
"""Fraction of the available memory that FBGEMM's tables may use."""


def measure_tier(run: Run, steps: int, rounds: int, ring: int, note: Callable[[str], None]) -> Result:
    """Measure in alternating turns on one ring of batches; raises UserError for runs that cannot be compared."""
    optimizer = run.optimizer.embedding
    if not isinstance(optimizer, Adagrad | RowwiseAdagrad | Sgd):
        raise UserError(
            f"FBGEMM has no {optimizer.kind} on the CPU; use optimizer.embedding.kind=rowwise_adagrad, adagrad or sgd"
        )
    if optimizer.l2 or optimizer.weight_decay:
        raise UserError("FBGEMM decays no rows on the CPU; leave out optimizer.embedding.l2 and weight_decay")
    if not run.cluster.has_processes_here or run.cluster.nn_workers > 1:
        raise UserError("the tier is measured in processes with one NN worker: use cluster=local cluster.nn_workers=1")
    facts = inspect(run.dataset)
    ring = min(ring, facts.train_rows // run.train.batch)
    retain_freed_memory()
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with terminating_interrupts(), ExitStack() as exit_stack:
            baselines = _baselines(run, ring, steps, note)
            note("starting the job")
            job = exit_stack.enter_context(TurnJob(run, facts, steps, rounds + 1, ring, NullWorker))
            taken = take_turns({OURS: partial(_turn, job)} | baselines, rounds, note, job.cpu_seconds)
            stages = stages_of(*job.finish())
    finally:
        sys.setswitchinterval(before)
    features = len(table_sizes(run))
    sides = [side_of(name, turns, run.train.batch, features) for name, turns in taken.items()]
    return Result("tier", run.name, "ids/s", with_ratios(sides), rounds, steps, stages=stages)


def _turn(job: TurnJob) -> TurnFigures:
    before = cpu_seconds()
    figures = job.turn()
    # The client's CPU time is that of the whole turn, so it is scaled to the measured intervals.
    client = (cpu_seconds() - before) * (INTERVALS - 1) / INTERVALS
    return replace(figures, cpu_s=figures.cpu_s | {"client": client})


def _baselines(run: Run, ring: int, steps: int, note: Callable[[str], None]) -> dict[str, Callable[[], TurnFigures]]:
    """Return FBGEMM with one thread and with all cores, on the run's tables and batches; empty if not installed."""
    from persia_cli.bench.baselines.parts import tensor, threads
    from persia_cli.bench.baselines.steps import Fbgemm, has_fbgemm

    if not has_fbgemm():
        note("FBGEMM is not installed (pip install --group compare), so there is nothing to compare with")
        return {}
    note("preparing FBGEMM")
    optimizer, shape = run.optimizer.embedding, portion_shape(run)
    assert isinstance(optimizer, Adagrad | RowwiseAdagrad | Sgd)
    needed = sum(table_sizes(run)) * run.model.dim * 8
    if needed > SPARE * available_bytes():
        raise UserError(f"FBGEMM's tables need {needed / 2**30:.1f} GiB, more than is free; use smaller tables")
    eps = 0.0 if isinstance(optimizer, Sgd) else optimizer.eps
    tables = Fbgemm(shape.sizes, run.model.dim, optimizer.kind, shape.samples, optimizer.rate, eps)
    source = open_source(run.dataset, "train", run.seed, run.links)
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
        following = cycle(batches)

        def step() -> int:
            tables.step(next(following), gradient)
            return shape.samples

        with threads(count):
            return timed_turn(step, turn_steps(steps), lambda: {"fbgemm": cpu_seconds()})

    cores = len(os.sched_getaffinity(0))
    names = {count: f"fbgemm, {count} thread{'s' if count > 1 else ''}" for count in sorted({1, cores})}
    return {name: partial(turn, count) for count, name in names.items()}
