"""The NN worker's I/O thread: requests rows ahead of the training thread, within the staleness bound."""

import math
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from persia_cli.config.schema import Run
from persia_cli.control.position import EVAL, TRAIN
from persia_cli.control.watermarks import Permits, Window
from persia_cli.errors import PersiaError, RoleError, WireError
from persia_cli.plan.columns import dense_count, has_query_ids, item_features, label_names, trains_on_queries
from persia_cli.plan.job import Job, job_batches
from persia_cli.roles.session import CoordinatorSession, IntervalReport
from persia_cli.wire.client import Client
from persia_cli.wire.job_messages import CutShort, EvaluateSteps, Halt, PhaseWork, PredictSteps, TrainSteps
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import Array, BatchId
from persia_cli.wire.messages import (
    Ack,
    Credit,
    GroupRows,
    Pull,
    PullWeights,
    PushGradients,
    PutSamples,
    ReadRows,
    Rows,
    WaitCredit,
)
from persia_cli.wire.server import Peer

Item = TypeVar("Item")

WAIT_S = 0.2
"""Seconds between two checks whether the job is over."""
CREDIT_STEPS = 4
"""Steps that a loader which waits for credit may then send, so that it asks once for so many."""


class JobEndedError(PersiaError):
    """Raised in the training thread when the job has ended."""


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """One rank's part of a step with its embeddings, as encoded on the wire."""

    samples: PutSamples
    rows: Rows

    @property
    def batch(self) -> BatchId:
        """The identity of the batch."""
        return self.samples.batch


class Pipeline:
    """The source of batches for the training thread of one rank, in the order of steps.

    The methods of the first part are for the training thread; those that wait raise JobEndedError when the job ends, or
    the error that ended the I/O thread. The methods of the second part run on the I/O thread, which owns the loop.
    Queues connect the two.
    """

    def __init__(self, loop: Loop, session: CoordinatorSession, bind: str, advertise: str | None = None) -> None:
        self._loop = loop
        self._session = session
        self._server = loop.serve(bind)
        self.empty = loop.empty
        self.address = advertise or self._server.address
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[ReadyBatch | None] = queue.SimpleQueue()
        """Batches for the training thread, and None after the last one of a phase."""
        self._waker = loop.waker()
        self._splits: dict[int, SplitSteps] = {}
        self._waiting: dict[tuple[bytes, int], tuple[Peer, WaitCredit]] = {}
        self._died: BaseException | None = None
        self.waited_s = 0.0
        """Seconds so far in which the training thread waited for batches."""
        self.dense_rows = 0
        """Rows of dense weights that every training batch requests; set before the first phase."""
        self.reductions = 0
        """Number of times that evaluations have reduced the learning rate of rows before this phase of training."""

    def connect(self, run: Run, job: Job, in_flight: dict[int, int], window: int) -> None:
        """Connect to the embedding workers; called before the I/O thread starts.

        `in_flight` bounds the steps of each split between look-up and sent gradients. `window` is the number of steps
        beyond the last finished one that loaders may send.
        """
        self._trace = self._session.trace
        self._rank, self._world_size, self._window = self._session.index, run.cluster.nn_workers, window
        self._job_batches = job_batches(run, job)
        self._dense, self._tasks = dense_count(run), len(label_names(run))
        self._has_queries = {TRAIN: trains_on_queries(run), EVAL: has_query_ids(run)}
        self._has_items = bool(item_features(run))
        self._workers = self._session.connect("embedding-worker")
        for split, first in ((TRAIN, job.first_step), (EVAL, 0)):
            self._splits[split] = SplitSteps(
                Permits(in_flight[split], first, first, Window(watermark=first - 1)), first
            )

    # For the training thread

    def call(self, function: Callable[[], None]) -> None:
        """Make the I/O thread call this soon."""
        self._calls.put(function)
        self._waker.wake()

    def wake(self) -> None:
        """End the I/O thread's wait for messages."""
        self._waker.wake()

    def next_batch(self) -> ReadyBatch | None:
        """Wait for the batch of the phase's next step; return None after the last one."""
        ready = self._await(self._ready)
        if ready is not None:
            self._trace.end("ready", ready.batch)
        return ready

    def push(self, batch: BatchId, gradients: list[Array]) -> None:
        """Send one block of encoded gradients per group, or none to release an evaluation batch."""
        self.call(lambda: self._push(batch, gradients))

    def report(self, interval: Callable[[], IntervalReport]) -> None:
        """Make the I/O thread send `interval()`, once the coordinator is not too far behind."""
        while not self._session.report_slots.acquire(timeout=WAIT_S):
            self.check()
        self.call(lambda: self._session.report(interval()))

    def weights(self, split: int, step: int) -> GroupRows:
        """Wait for the present dense weights of the embedding servers; `split` and `step` are of any batch."""
        batch = BatchId(split, step, self._rank)
        return self._read(PullWeights(batch, self.dense_rows), "the dense weights")[0]

    def rows(self, step: int, size: int, ids: Array, offsets: Array) -> list[GroupRows]:
        """Wait for the present rows of the ids of `size` samples; `step` is of an evaluation."""
        batch = BatchId(EVAL, step, self._rank)
        return self._read(ReadRows(batch, size, ids, offsets), "rows to be read")

    def _read(self, request: PullWeights | ReadRows, waiting_for: str) -> list[GroupRows]:
        answer: queue.SimpleQueue[Rows] = queue.SimpleQueue()
        self.call(lambda: self._worker_of(request.batch).request(request, answer.put, waiting_for))
        return self._await(answer).groups

    def wait_drained(self, split: int) -> None:
        """Wait until no step of the split is in flight."""
        while not self._splits[split].drained.wait(WAIT_S):
            self.check()
        self.check()

    def check(self) -> None:
        """Raise JobEndedError if the job has ended, or the error that ended the I/O thread."""
        if self._died is not None:
            raise self._died
        if self._session.stop:
            raise JobEndedError("the job has ended")

    def fail(self, error: BaseException) -> None:
        """Make the training thread raise the error of another thread."""
        self._died = error

    def _await(self, answers: "queue.SimpleQueue[Item]") -> Item:
        while True:
            self.check()
            begin_s = time.monotonic()
            with suppress(queue.Empty):
                try:
                    return answers.get(timeout=WAIT_S)
                finally:
                    self.waited_s += time.monotonic() - begin_s

    # On the I/O thread

    def serve(self, ended: threading.Event) -> None:
        """Run the loop and the calls of the training thread until `ended`; that thread raises an error of this one."""
        try:
            while not ended.is_set():
                self._loop.poll(WAIT_S)
                while not self._calls.empty():
                    self._calls.get()()
        except Exception as error:
            self._died = error

    def open(self) -> None:
        """Accept samples from loaders from now on."""
        self._server.on(PutSamples, self._on_samples)
        self._server.on(WaitCredit, self._on_wait_credit)

    def execute(self, number: int, work: PhaseWork) -> bool:
        """Begin the steps of a phase, or end them early; return True if the training thread has work."""
        match work:
            case TrainSteps():
                self.reductions = work.row_reductions
                self._begin(TRAIN, work.first, work.last)
            case EvaluateSteps() | PredictSteps():
                self._begin(EVAL, work.first, work.last)
            case Halt():
                self._session.halted(number, self._splits[work.split].permits.pause())
                return False
            case CutShort():
                # Needed also where all batches were passed on before the hold: the `None` after them came during it.
                self._go_on(work.split, work.last)
                return False
        return True

    def _begin(self, split: int, first: int, last: int) -> None:
        steps = self._splits[split]
        if steps.next != first or steps.open or not self._ready.empty():
            raise RoleError("internal error: the phase began with batches left over")
        steps.open = True
        steps.drained.clear()
        self._go_on(split, last)

    def _go_on(self, split: int, last: int) -> None:
        steps = self._splits[split]
        steps.permits.begin(last)
        self._pull(split)
        self._pass_on(steps)
        steps.signal_drained()

    def _worker_of(self, batch: BatchId) -> Client:
        return self._workers[(batch.step * self._world_size + batch.rank) % len(self._workers)]

    def _pull(self, split: int) -> None:
        permits = self._splits[split].permits
        while (step := permits.next_step()) is not None:
            batch = BatchId(split, step, self._rank)
            self._trace.begin("pull", batch)
            self._worker_of(batch).request(
                Pull(batch, self.dense_rows if split == TRAIN else 0),
                on_reply=partial(self._on_rows, batch),
                waiting_for=f"the embeddings of step {step}",
            )

    def _on_samples(self, peer: Peer, message: PutSamples) -> None:
        steps = self._splits[message.batch.split]
        step = message.batch.step
        self._check_samples(steps, message)
        if step >= steps.next and step not in steps.samples:
            steps.samples[step] = message
            self._pass_on(steps)
        self._server.acknowledge(peer)

    def _check_samples(self, steps: "SplitSteps", message: PutSamples) -> None:
        """Raise WireError for samples of another rank, without credit, or of another shape."""
        batch = message.batch
        size = self._job_batches.size(batch.split, batch.step, batch.rank, len(message.labels))
        if batch.rank != self._rank:
            raise WireError(f"rank {self._rank} received samples of rank {batch.rank}")
        if batch.step >= steps.permits.credit(self._window):
            raise WireError(f"the samples of step {batch.step} arrived without credit")
        dense, labels, query_ids = message.dense, message.labels, message.query_ids
        if (dense.shape, labels.shape) != ((size, self._dense), (size, self._tasks)):
            raise WireError(
                f"expected {size} samples of {self._dense} dense values and {self._tasks} labels, received shapes "
                f"{dense.shape} and {labels.shape}"
            )
        if (query_ids is not None) != self._has_queries[batch.split]:
            raise WireError(f"the samples arrived {'without' if query_ids is None else 'with'} query ids")
        if (message.item_keys is not None) != self._has_items:
            raise WireError(f"the samples arrived {'without' if message.item_keys is None else 'with'} keys of items")
        if not ((totals := message.weight_totals) >= 0.0).all() or not (totals < math.inf).all():
            raise WireError(f"the weights of step {batch.step} cannot add up to {totals.tolist()}")

    def _on_rows(self, batch: BatchId, rows: Rows) -> None:
        steps = self._splits[batch.split]
        self._trace.end("pull", batch, staleness=rows.staleness)
        steps.rows[batch.step] = rows
        self._pass_on(steps)

    def _pass_on(self, steps: "SplitSteps") -> None:
        """Pass complete batches to the training thread, in order: all ranks must train the same step together."""
        while steps.next in steps.samples and steps.next in steps.rows:
            ready = ReadyBatch(steps.samples.pop(steps.next), steps.rows.pop(steps.next))
            steps.next += 1
            self._trace.begin("ready", ready.batch)
            self._ready.put(ready)
        if steps.open and not steps.permits.paused and steps.next >= steps.permits.end:
            steps.open = False
            self._ready.put(None)

    def _push(self, batch: BatchId, gradients: list[Array]) -> None:
        self._trace.begin("push", batch)
        self._worker_of(batch).request(
            PushGradients(batch, self.reductions, gradients),
            on_reply=partial(self._on_applied, batch),
            waiting_for=f"the update of step {batch.step}",
        )
        # The next look-up travels with the gradients, all the way to the servers.
        self._splits[batch.split].permits.send(batch.step)
        self._pull(batch.split)

    def _on_applied(self, batch: BatchId, _: Ack) -> None:
        self._trace.end("push", batch)
        steps = self._splits[batch.split]
        steps.permits.give_back(batch.step)
        steps.signal_drained()
        self._answer_credit()

    def _on_wait_credit(self, peer: Peer, message: WaitCredit) -> None:
        self._job_batches.size(message.split, message.step, self._rank)
        self._waiting[peer.identity, message.split] = (peer, message)
        self._answer_credit()

    def _answer_credit(self) -> None:
        for key, (peer, wait) in list(self._waiting.items()):
            limit = self._splits[wait.split].permits.credit(self._window)
            if wait.step + CREDIT_STEPS <= limit:
                del self._waiting[key]
                self._server.reply(peer, Credit(limit, limit - self._window))


@dataclass(slots=True)
class SplitSteps:
    """The steps of one split in progress; `next` is the first one not yet passed to the training thread.

    `open` is True until the last batch of the phase is passed on.
    """

    permits: Permits
    next: int = 0
    samples: dict[int, PutSamples] = field(default_factory=dict)
    rows: dict[int, Rows] = field(default_factory=dict)
    drained: threading.Event = field(default_factory=threading.Event)
    open: bool = False

    def signal_drained(self) -> None:
        """Wake the training thread if no step is in flight."""
        if self.permits.drained:
            self.drained.set()
