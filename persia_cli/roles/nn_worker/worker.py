"""The NN worker: one rank, as a training thread that follows instructions and an I/O thread that owns the sockets."""

import itertools
import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import AsyncMode, Run, SyncMode
from persia_cli.control.membership import RunningClock
from persia_cli.control.position import EVAL, SPLIT_NAMES, TRAIN
from persia_cli.data.read.batch import Batch
from persia_cli.errors import CheckpointError, DiskError, WireError
from persia_cli.kernels.toolchain.needs import SCORING, pooling_needs
from persia_cli.kernels.toolchain.warm import warm
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.retrieval.evaluation import answer_of, ranking_metrics
from persia_cli.retrieval.question import Progress, Question, ask
from persia_cli.retrieval.towers import Towers
from persia_cli.roles.nn_worker.interval import Interval, MetricLines
from persia_cli.roles.nn_worker.pipeline import JobEndedError, Pipeline, ReadyBatch
from persia_cli.roles.nn_worker.rendezvous import RankStore
from persia_cli.roles.session import COMPILING, HEARTBEAT_S, CoordinatorSession, Work
from persia_cli.roles.task_thread import TaskThread
from persia_cli.storage.locations import Location, location_of
from persia_cli.store.checkpoints.manifest import calibration_of, verified_folder
from persia_cli.training.compiling import watched_compiling
from persia_cli.training.dense_state import TensorFile, write_files
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.training.device import device_of, explained_full_memory, have_exclusive_gpus, peak_memory
from persia_cli.training.distributed import LOOPBACK, LostRankError, World
from persia_cli.training.inputs import Samples
from persia_cli.training.step import TRAINING
from persia_cli.wire.addresses import host_of, interface_of, is_remote
from persia_cli.wire.job_messages import Counters, EvaluateSteps, PhaseWork, PredictSteps, SaveModel, TrainSteps
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import BatchId
from persia_cli.wire.messages import GroupRows

EVAL_STEPS_IN_FLIGHT = 8
SYNC_STEPS_IN_FLIGHT = 2
"""In sync mode the next look-up waits at the servers, so requesting it early costs no staleness."""

LOADED_AHEAD = 8
"""Steps that loaders may send beyond those that may be in flight."""

PORTION = 2**18
"""Samples of an evaluation, over all ranks, after which ranks report a portion of it."""

WORK = {TRAIN: "training", EVAL: "scoring"}
"""The name of a step's work, by split."""

DENSE = "dense"
"""Folder of a checkpoint that holds the dense weights and optimizer."""

log = logging.getLogger(__name__)


class NNWorker:
    """One rank. `run` is the training thread; the I/O thread that it starts owns loop, session and pipeline."""

    def __init__(self, loop: Loop, session: CoordinatorSession, bind: str, advertise: str | None = None) -> None:
        self._loop, self._bind = loop, bind
        self._session = session
        self._pipeline = Pipeline(loop, session, bind, advertise)
        self._instructions: queue.SimpleQueue[tuple[int, PhaseWork]] = queue.SimpleQueue()
        self._steps_scored = 0
        self._ended = threading.Event()
        self._files = TaskThread(f"{session.name}-files", self._pipeline.wake)
        self._retrieval: RetrievalOfRows | None = None

    def run(self) -> None:
        """Train and evaluate as instructed until the job is over."""
        run, job = self._session.join(self._pipeline.address)
        self._session.waited_s = lambda: self._pipeline.waited_s
        self._session.counters = lambda: Counters(counts={"steps_scored": self._steps_scored})
        self._ranks, self._bound = run.cluster.nn_workers, _train_bound(run)
        self._pipeline.connect(run, job, {TRAIN: self._bound, EVAL: EVAL_STEPS_IN_FLIGHT}, self._bound + LOADED_AHEAD)
        io = threading.Thread(target=self._pipeline.serve, args=(self._ended,), name=f"{self._session.name}-io")
        io.start()
        world: World | None = None
        try:
            world = self._joined_world(run)
            largest_dim = max((group.dim for group in embedding_layout(run).groups), default=0)
            with (
                _report_compilation(run, self._session.work),
                explained_full_memory(world.device, run.train.batch, largest_dim),
            ):
                self._work(run, job, world)
        except JobEndedError:
            pass
        except LostRankError:
            # The coordinator detects which rank was lost, and stops the job with an error that names it.
            if not self._is_stopped_within(run.cluster.silence_timeout_s + 2 * HEARTBEAT_S):
                raise
        finally:
            self._files.close(0.0)  # a stalled disk must not hide an error
            self._ended.set()
            self._pipeline.wake()
            io.join()
        # After a failure only the end of the process leaves the group: other ranks would notice an earlier end at once,
        # and their errors would reach the coordinator before this rank's own.
        if world is not None:
            world.close()
        self._session.farewell()

    def _joined_world(self, run: Run) -> World:
        """Join the group of ranks that the coordinator expects; the I/O thread sends heartbeats meanwhile."""
        ranks = 1 if isinstance(run.mode, AsyncMode) else self._ranks
        device = device_of(run, self._session.index)
        uses_nccl = device.type == "cuda" and have_exclusive_gpus(run.train.device, ranks)
        timeout_s = run.cluster.start_timeout_s
        pipeline = self._pipeline
        store = RankStore(self._session, pipeline.call, pipeline.check, timeout_s) if ranks > 1 else None
        interface = interface_of(host_of(self._bind)) if is_remote(self._bind) else LOOPBACK
        try:
            return World(
                self._session.index,
                ranks,
                store,
                timeout_s,
                device,
                uses_nccl,
                interface,
                run.cluster.work_timeout_s,
            )
        except WireError:
            self._pipeline.check()  # the end of the job is the better reason
            raise

    def _is_stopped_within(self, seconds: float) -> bool:
        """Return whether a request to stop arrives within this time; the I/O thread sends heartbeats meanwhile."""
        self._session.work.end()
        awake = RunningClock(time.monotonic())
        while not self._session.stop and awake.at(time.monotonic()) < seconds:
            time.sleep(0.05)
        return self._session.stop

    # The I/O thread

    def _on_instruction(self, number: int, work: PhaseWork) -> None:
        if self._pipeline.execute(number, work):
            self._instructions.put((number, work))

    # The training thread

    def _work(self, run: Run, job: Job, world: World) -> None:
        self._trace, self._device = self._session.trace, world.device
        self._session.work.begin("building the network")
        pipeline = self._pipeline
        trainer = DenseTrainer(run, world, self._trace, pipeline.empty, job.task == "train", pipeline.fail)
        self._portion = max(1, PORTION // run.train.batch)
        self._pipeline.dense_rows = trainer.dense_rows
        warm([SCORING])
        if world.device.type == "cpu":
            warm(pooling_needs(feature.pooling for feature in embedding_layout(run).features))
        if run.eval.lists and self._session.index == 0:
            self._retrieval = RetrievalOfRows(run, run.eval.lists, trainer, world, self._pipeline, self._session.work)
        self._load(run, job, trainer)
        self._session.work.end()
        self._pipeline.call(self._pipeline.open)
        self._pipeline.call(lambda: self._session.ready(self._on_instruction, trainer.parameters))
        try:
            self._follow(trainer)
        finally:
            trainer.close()

    def _load(self, run: Run, job: Job, trainer: DenseTrainer) -> None:
        """Load the initial dense weights of the job, if it has any, and corrections unless it trains."""
        if job.load:
            self._session.work.begin("reading the dense weights")
            trainer.load(verified_folder(location_of(job.load), DENSE))
            if job.task != "train":
                trainer.calibrate(calibration_of(run, location_of(job.load)))
        elif job.warm and job.warm.dense and job.warm.checkpoint:
            self._session.work.begin("reading the dense weights")
            trainer.warm_start(verified_folder(location_of(job.warm.checkpoint), DENSE), job.warm.states)

    def _follow(self, trainer: DenseTrainer) -> None:
        while not self._session.stop:
            self._pipeline.check()
            try:
                number, work = self._instructions.get(timeout=0.05)
            except queue.Empty:
                self._files.tick()
                continue
            match work:
                case TrainSteps():
                    self._train(trainer, work)
                case EvaluateSteps():
                    self._evaluate(trainer, work)
                case PredictSteps():
                    self._predict(trainer, work)
                case SaveModel():
                    self._save(trainer, work)
            self._pipeline.call(partial(self._session.done, number))
            self._files.tick()

    def _train(self, trainer: DenseTrainer, work: TrainSteps) -> None:
        lines = MetricLines(trainer.links, trainer.log_every_steps, work.first, self._report)
        trainer.reductions = work.dense_reductions
        for ready in self._batches(TRAIN, work.first):
            samples = _samples_of(ready)
            send, done = partial(self._send, ready.batch), partial(lines.add, ready, samples)
            trainer.train(ready.batch.step, samples, ready.rows.groups, send, done)
            lines.send()
        trainer.drain()
        lines.end()
        self._pipeline.wait_drained(TRAIN)

    def _send(self, batch: BatchId, gradients: list[NDArray[np.uint8]]) -> None:
        self._pipeline.push(batch, gradients)
        if self._ranks > 1:
            # From now on this rank waits for the others: if one is stuck, it is another one.
            self._session.work.end()

    def _evaluate(self, trainer: DenseTrainer, work: EvaluateSteps) -> None:
        self._refresh(trainer, EVAL, work.first)
        interval, since = Interval(trainer.links), time.monotonic()
        done = work.first
        for ready in self._batches(EVAL, work.first):
            samples = _samples_of(ready)
            scored = trainer.evaluate(ready.batch.step, samples, ready.rows.groups)
            self._pipeline.call(partial(interval.add, samples, scored, ready.rows))
            self._pipeline.push(ready.batch, [])
            done = self._steps_scored = ready.batch.step + 1
            if (done - work.first) % self._portion == 0 and done < work.last:
                now = time.monotonic()
                self._report(EVAL, done, interval, now - since, more=True)
                interval, since = Interval(trainer.links), now
        if done == work.last:  # a shortened evaluation has no metrics
            self._report_whole(work, interval, since)
        self._pipeline.wait_drained(EVAL)

    def _report_whole(self, work: EvaluateSteps, interval: Interval, since: float) -> None:
        """Report the last interval of an evaluation; rank 0 adds the retrieval metrics of the run."""
        # Retrieval takes time but scores no samples, so its time does not count.
        seconds = time.monotonic() - since
        if self._retrieval is not None:
            interval.retrieval = self._retrieval.metrics(work.first)
        self._report(EVAL, work.last, interval, seconds)

    def _predict(self, trainer: DenseTrainer, work: PredictSteps) -> None:
        self._refresh(trainer, EVAL, work.first)
        for ready in self._batches(EVAL, work.first):
            scored = trainer.evaluate(ready.batch.step, _samples_of(ready), ready.rows.groups)
            # A batch counts as in flight until its scores are written, so that they cannot accumulate.
            release = partial(self._pipeline.push, ready.batch, [])
            self._pipeline.call(partial(self._session.send_scores, ready.batch, scored.logits, release))
            self._steps_scored = ready.batch.step + 1
        self._pipeline.wait_drained(EVAL)

    def _save(self, trainer: DenseTrainer, work: SaveModel) -> None:
        """Copy the dense state, and write it while training continues; only rank 0, since all ranks have the same."""
        if self._session.index != 0:
            return
        self._refresh(trainer, TRAIN, work.step - 1)
        self._session.work.begin("copying the dense weights")
        write = partial(self._write, location_of(work.folder) / DENSE, work.step, trainer.files())
        self._files.run("writing the dense weights", write)
        self._session.work.end()

    def _write(self, folder: Location, step: int, files: Sequence[TensorFile]) -> None:
        """Write the files of a checkpoint, on another thread, and report them."""
        try:
            saved = partial(self._session.saved, step, write_files(files, folder))
        except (DiskError, CheckpointError) as error:
            saved = partial(self._session.saved, step, (), str(error))
        self._pipeline.call(saved)

    def _refresh(self, trainer: DenseTrainer, split: int, step: int) -> None:
        """Load the dense weights from the embedding servers, if those store them."""
        if trainer.dense_rows == 0:
            return
        trainer.refresh(self._pipeline.weights(split, step))

    def _batches(self, split: int, first: int) -> Iterator[ReadyBatch]:
        """Yield the rank's batches of a phase, beginning with that of step `first`."""
        for step in itertools.count(first):
            with self._trace.span(TRAINING, "wait for batch", BatchId(split, step, self._session.index)):
                ready = self._pipeline.next_batch()
            self._files.tick()
            if ready is None:
                return
            self._session.work.begin(f"{WORK[split]} step {step}")
            yield ready
            self._session.work.end()

    def _report(self, split: int, last: int, interval: Interval, seconds: float, more: bool = False) -> None:
        """Report an interval that took so long."""
        interval.gpu_memory = peak_memory(self._device)
        report = partial(interval.report, SPLIT_NAMES[split], last, seconds, more)
        # This rank waits for a coordinator that cannot follow.
        self._session.work.end()
        self._pipeline.report(report)


class RetrievalOfRows:
    """The ranking of all items for each user by the present model, during a job; for the training thread.

    It reads rows of embedding servers, and changes none. The data are read once, before the first metrics. Of them, a
    sample of each item and of each user stays in memory, and the items of each user.
    """

    def __init__(
        self, run: Run, lengths: tuple[int, ...], trainer: DenseTrainer, world: World, pipeline: Pipeline, work: Work
    ) -> None:
        self._run, self._lengths, self._pipeline, self._work = run, lengths, pipeline, work
        self._towers = Towers(run, trainer.network, world.device, self._rows_of)
        self._question: Question | None = None
        self._step = 0

    def metrics(self, step: int) -> dict[str, float]:
        """Return the metrics by their keys in `metrics.jsonl`; `step` is any of the evaluation.

        Raise the errors of `ask` and `answer_of`, and JobEndedError.
        """
        self._step = step
        if self._question is None:
            self._question = ask(self._run, None, self._beginning("reading all items"), self._run.eval.users)
        beginning = self._beginning("computing vectors of users and items")
        answer = answer_of(self._question, self._towers.users, self._towers.items, beginning)
        metrics = ranking_metrics(self._question, answer, self._lengths, self._beginning("ranking all items"))
        self._work.end()
        return metrics

    def _rows_of(self, batch: Batch) -> list[GroupRows]:
        return self._pipeline.rows(self._step, batch.size, batch.ids, batch.offsets)

    def _beginning(self, what: str) -> Progress:
        """Return a function that begins a piece of this work, unless the job is over."""

        def begin() -> None:
            self._pipeline.check()
            self._work.begin(what)

        return begin


def _samples_of(ready: ReadyBatch) -> Samples:
    came = ready.samples
    return Samples(
        came.dense,
        came.labels,
        came.weights,
        came.weight_totals.tolist(),
        came.query_ids,
        came.item_keys,
        came.drawn_share,
        came.log_q,
    )


@contextmanager
def _report_compilation(run: Run, work: Work) -> Iterator[None]:
    """Report the times in which torch compiles the network: at first, and for a batch of another kind."""
    if not run.train.compile:
        yield
        return
    begin, end = work.interruption(COMPILING)
    with watched_compiling(begin, end):
        yield


def _train_bound(run: Run) -> int:
    return SYNC_STEPS_IN_FLIGHT if isinstance(run.mode, SyncMode) else run.mode.staleness
