"""Ids per second of embedding workers and servers, without a network, against FBGEMM's tables in one process.

    python -m scripts.measure tier                            # the job that its target holds for
    python -m scripts.measure tier conf=criteo model.dim=128 optimizer=adagrad

Batches repeat from memory. A client in place of the NN worker pulls their rows, and pushes prepared gradients as fast
as rows arrive. FBGEMM has the same tables, batches and gradients, with one thread and with all cores. It is in the
group `compare`: `pip install --group compare`, in a checkout; without it, the tier is measured alone.
"""

import os
import queue
import sys
import threading
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import cycle

import numpy as np

from persia_cli.bench.breakdown import stages_of
from persia_cli.bench.machine import available_bytes
from persia_cli.bench.portions import portion_shape, table_sizes
from persia_cli.bench.result import OURS, Result, Stage, with_ratios
from persia_cli.bench.rounds import INTERVALS, MeasuredTurn, side_of, take_turns, timed_turn, turn_steps
from persia_cli.bench.turns import TurnJob
from persia_cli.config.schema import Adagrad, HybridMode, RowwiseAdagrad, Run, Sgd
from persia_cli.control.position import EVAL, TRAIN
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.source import open_source
from persia_cli.engines.job import SWITCH_INTERVAL_S
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import UserError
from persia_cli.jobs.plan import settled_run
from persia_cli.kernels.toolchain.memory import retain_freed_memory
from persia_cli.observe.machine import cpu_seconds
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.plan.columns import label_names
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.roles.nn_worker.pipeline import JobEndedError, Pipeline
from persia_cli.roles.session import CoordinatorSession
from persia_cli.roles.start import default_address
from persia_cli.store.wire_rows import encode_rows
from persia_cli.wire.job_messages import IntervalMetrics, PhaseWork, TrainSteps
from persia_cli.wire.loop import Loop
from persia_cli.wire.sockets import Context
from scripts.measure import Given, Note

TARGET = [
    "conf=criteo", "train.batch_size=4096", "optimizer=rowwise_adagrad", "embedding.wire=float16",
    "cluster.embedding_servers=2",
]  # fmt: skip
"""Settings of the job that the target holds for."""
SPARE = 0.85
"""Fraction of the available memory that FBGEMM's tables may use."""
LOADED_AHEAD = 8
"""Steps that loaders may send in addition to those in flight, as for an NN worker."""
GRADIENT = 1e-3
"""Magnitude of the gradients that are pushed."""
Takers = Mapping[str, Callable[[], MeasuredTurn]]


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("overrides", nargs="*", default=TARGET, metavar="KEY=VALUE", help="of the job")
    parser.add_argument("--steps", type=int, default=400, help="steps that a turn measures; %(default)s")
    parser.set_defaults(rounds=5)


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Measure in alternating turns on one ring of batches; raises UserError for runs that cannot be compared."""
    run = settled_run(given.overrides, [])
    steps, ring = (20, 4) if given.quick else (given.steps, 64)
    optimizer = run.optimizer.embedding
    if not isinstance(optimizer, Adagrad | RowwiseAdagrad | Sgd):
        raise UserError(
            f"FBGEMM has no {optimizer.kind} on the CPU; use optimizer.embedding.kind=rowwise_adagrad, adagrad or sgd"
        )
    if optimizer.l2 or optimizer.weight_decay:
        raise UserError("FBGEMM decays no rows on the CPU; leave out optimizer.embedding.l2 and weight_decay")
    if not run.cluster.has_processes_here or run.cluster.nn_workers > 1:
        raise UserError("the tier is measured in processes with one NN worker: use cluster=local cluster.nn_workers=1")
    ring = min(ring, inspect(run.dataset).train_rows // run.train.batch)
    turns, stages = tier_turns(run, steps, given.rounds, ring, _fbgemm(run, ring, steps, note), note)
    features = len(table_sizes(run))
    sides = with_ratios([side_of(name, own, run.train.batch, features) for name, own in turns.items()])
    name = f"tier, {optimizer.kind}, {run.embedding.wire} wire, {run.cluster.embedding_servers} servers"
    yield Result("", name, "ids/s", sides, given.rounds, steps, stages=stages)


def tier_turns(
    run: Run, steps: int, rounds: int, ring: int, others: Takers, note: Note
) -> tuple[dict[str, list[MeasuredTurn]], list[Stage]]:
    """Measure a job with a `NullWorker`, alternating with others; return the turns of each, and the job's stages."""
    retain_freed_memory()
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with terminating_interrupts(), ExitStack() as exit_stack:
            note("starting the job")
            job = TurnJob(run, inspect(run.dataset), steps, rounds + 1, ring, NullWorker)
            exit_stack.enter_context(job)
            turns = take_turns({OURS: partial(_turn, job), **others}, rounds, note, job.cpu_seconds)
            return turns, stages_of(*job.finish())
    finally:
        sys.setswitchinterval(before)


def _turn(job: TurnJob) -> MeasuredTurn:
    before = cpu_seconds()
    measured = job.turn()
    # The client's CPU time is that of the whole turn, so it is scaled to the measured intervals.
    client = (cpu_seconds() - before) * (INTERVALS - 1) / INTERVALS
    return replace(measured, cpu_s=measured.cpu_s | {"client": client})


def _fbgemm(run: Run, ring: int, steps: int, note: Note) -> Takers:
    """Return FBGEMM with one thread and with all cores, on the run's tables and batches; empty if not installed."""
    import torch

    from scripts.measure.embedding_steps import Fbgemm, has_fbgemm

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
    gradient = torch.from_numpy(values)

    def turn(count: int) -> MeasuredTurn:
        following = cycle(batches)

        def step() -> int:
            tables.step(next(following), gradient)
            return shape.samples

        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            return timed_turn(step, turn_steps(steps), lambda: {"fbgemm": cpu_seconds()})
        finally:
            torch.set_num_threads(before)

    cores = len(os.sched_getaffinity(0))
    return {f"FBGEMM, {count} thread{'s' * (count > 1)}": partial(turn, count) for count in sorted({1, cores})}


class NullWorker:
    """Rank 0 of a job as two threads of this process, like those of an NN worker; `close` ends both."""

    def __init__(self, context: Context, coordinator: str) -> None:
        self._loop = Loop(context, "nn-worker-0")
        self._session = CoordinatorSession(self._loop, coordinator, "nn-worker", 0)
        self._pipeline = Pipeline(self._loop, self._session, default_address(coordinator, "nn-worker-0"))
        self._instructions: queue.SimpleQueue[tuple[int, PhaseWork]] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nn-worker-0")
        self._thread.start()

    def close(self) -> None:
        """End the worker, whatever the state of the job."""
        self._session.stop = True
        self._pipeline.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            run, job = self._session.join(self._pipeline.address)
            self._prepare(run, job)
            io = threading.Thread(target=self._pipeline.serve, args=(self._ended,), name="nn-worker-0-io")
            io.start()
            try:
                self._pipeline.call(self._pipeline.open)
                self._pipeline.call(lambda: self._session.ready(self._on_instruction))
                with suppress(JobEndedError):
                    self._follow()
            finally:
                self._ended.set()
                self._pipeline.wake()
                io.join()
            self._session.farewell()
        except Exception as error:
            if not self._session.stop:
                self._session.fail(error)
        finally:
            self._loop.close()

    def _prepare(self, run: Run, job: Job) -> None:
        bound = run.mode.staleness if isinstance(run.mode, HybridMode) else 1
        self._pipeline.connect(run, job, {TRAIN: bound, EVAL: 1}, bound + LOADED_AHEAD)
        layout = embedding_layout(run)
        self._every = run.train.log_every_steps
        tasks = len(label_names(run))
        # It scores nothing, and reports this.
        self._scores = ScoreHistogram(tasks)
        rng = np.random.default_rng(run.seed)
        self._gradients = []
        self._frozen = [group.is_frozen for group in layout.feature_groups]
        for group in layout.feature_groups:
            most = run.train.batch * len(layout.features_of(group.number))
            values = rng.standard_normal((most, group.dim), np.float32) * np.float32(GRADIENT)
            encoded = encode_rows(values, group.wire)
            # In the memory into which the kernels of an NN worker write them.
            self._gradients.append(self._pipeline.empty(encoded.shape, encoded.dtype))
            self._gradients[-1][...] = encoded

    def _on_instruction(self, number: int, work: PhaseWork) -> None:
        if self._pipeline.execute(number, work):
            self._instructions.put((number, work))

    def _follow(self) -> None:
        while not self._session.stop:
            self._pipeline.check()
            try:
                number, work = self._instructions.get(timeout=0.05)
            except queue.Empty:
                continue
            if isinstance(work, TrainSteps):
                self._train(work.first)
            self._pipeline.call(partial(self._session.done, number))

    def _train(self, first: int) -> None:
        samples, staleness = 0, Counter[int]()
        since = time.monotonic()
        done = first
        while (ready := self._pipeline.next_batch()) is not None:
            sizes = [
                0 if frozen else sum(map(len, group.rows))
                for group, frozen in zip(ready.rows.groups, self._frozen, strict=True)
            ]
            pushed = [values[:size] for values, size in zip(self._gradients, sizes, strict=True)]
            self._pipeline.push(ready.batch, pushed)
            samples += len(ready.samples.labels)
            staleness[ready.rows.staleness] += 1
            done = ready.batch.step + 1
            if done % self._every == 0:
                self._report(done, samples, staleness, since)
                samples, staleness, since = 0, Counter(), time.monotonic()
        if samples:
            self._report(done, samples, staleness, since)
        self._pipeline.wait_drained(TRAIN)

    def _report(self, done: int, samples: int, staleness: Counter[int], since: float) -> None:
        steps, seconds, losses = dict(staleness), time.monotonic() - since, (0.0,) * self._scores.tasks
        metrics = IntervalMetrics("train", done, samples, staleness.total(), steps, seconds, losses)
        report = (metrics, self._scores.encode(), None)
        self._pipeline.report(lambda: report)
