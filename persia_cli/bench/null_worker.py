"""An NN worker without a network: it pulls rows and pushes prepared gradients as fast as rows arrive."""

import queue
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial

import numpy as np

from persia_cli.config.schema import HybridMode, Run
from persia_cli.control.position import EVAL, TRAIN
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

LOADED_AHEAD = 8
"""Steps that loaders may send in addition to those in flight, as for an NN worker."""
GRADIENT = 1e-3
"""Magnitude of the gradients that are pushed."""


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
            # The place where the kernels of an NN worker write them.
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
        steps, seconds = dict(staleness), time.monotonic() - since
        figures = IntervalMetrics(
            "train", done, samples, staleness.total(), steps, seconds, (0.0,) * self._scores.tasks
        )
        report = (figures, self._scores.encode(), None)
        self._pipeline.report(lambda: report)
