"""The data loader: reads its assigned steps and sends ids to embedding workers, the rest to NN workers."""

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import Esmm, ParquetDataset, Run
from persia_cli.control.position import EVAL, SPLIT_NAMES, TRAIN, StepGrid
from persia_cli.data.follow.source import PortionSource
from persia_cli.data.read.batch import Batch, is_single
from persia_cli.data.read.item_keys import has_item, item_keys
from persia_cli.data.read.masked_labels import fill_chain, weight_totals
from persia_cli.data.read.next_items import NO_IDS, NextItemFeed, with_negatives
from persia_cli.data.read.source import Ring, Source, open_source, scanned
from persia_cli.data.read.trained_items import TrainedItems, trained_items
from persia_cli.errors import DataError, UserError
from persia_cli.observe.trace import LOOP
from persia_cli.plan.columns import (
    has_query_ids,
    item_features,
    next_item_features,
    next_item_loss,
    sparse_features,
    trains_on_queries,
)
from persia_cli.plan.job import Job
from persia_cli.roles.session import CoordinatorSession
from persia_cli.wire.job_messages import SENT_AGAIN, Counters, Item
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import BatchId
from persia_cli.wire.messages import Credit, PutIds, PutSamples, WaitCredit

CLOSE_S = 2.0
"""Longest wait for a read at the end of the job."""
READ_AHEAD = 4
"""Steps that are read before they may be sent: as many as credit comes for at once."""


class StepBatch(NamedTuple):
    """The samples of a step, and what the loss needs of them."""

    samples: Batch
    weight_totals: NDArray[np.float64]
    """As in `PutSamples`."""
    log_q: Sequence[NDArray[np.float32] | None]
    """For each rank, as in `PutSamples`."""


@dataclass(slots=True)
class Feed:
    """The batches of one split in progress: the present work item, and the limits that each rank grants."""

    split: int
    source: Source
    grid: StepGrid
    limits: list[int]
    finished: list[int]
    """For each rank the step before which it has finished all, as far as the loader was informed."""
    sent_ids: dict[int, list[PutIds]] = field(default_factory=dict)
    """The sent ids of each unfinished step: an embedding worker that dies has lost them."""
    next: int = 0
    last: int = 0
    reading: deque[Future[StepBatch]] = field(default_factory=deque)
    """The batches of the steps from `next` on, as the reader's thread makes them."""
    is_requesting: bool = False
    """True while the coordinator has not answered the request for steps."""
    ended: bool = False
    """True if no steps are left, or if one cannot be read, before which the job ends."""
    reported: int = -1
    """The last step with rows that are left out, reported to the coordinator."""
    allowed: int = -1
    """The last such step that may be sent."""
    waiting: set[int] = field(default_factory=set)

    def allow(self, step: int) -> None:
        """Allow a step without the rows that are left out of it."""
        self.allowed = step

    @property
    def limit(self) -> int:
        """The first step that the slowest rank does not accept yet."""
        return min(self.limits)

    @property
    def is_reading(self) -> bool:
        """True if the batch of the step `next` is not read yet."""
        return bool(self.reading) and not self.reading[0].done()

    def traced(self, step: int) -> int:
        """Return the number of a step for the trace; -1 in an evaluation."""
        return step if self.split == TRAIN else -1


class DataLoader:
    """The source of batches for all ranks; a separate thread reads, so that the poll loop never waits for a file."""

    def __init__(self, loop: Loop, session: CoordinatorSession) -> None:
        self._loop = loop
        self._session = session
        self._feeds: list[Feed] = []
        self._sent = self._sent_again = 0
        self._waited_s = 0.0
        """Seconds so far in which the next step was read, until NN workers accepted it."""
        self._unfollowed = 0
        """Number of labels above the label before them, where the network treats each as a part of it (ESMM)."""
        self._reader = ThreadPoolExecutor(1, thread_name_prefix=f"{session.name}-reader")
        self._waker = loop.waker()

    def run(self) -> None:
        """Send batches until the job is over."""
        run, job = self._session.join("")
        self._trace = self._session.trace
        self._ranks, self._items = run.cluster.nn_workers, item_features(run)
        places = next_item_features(run)
        weighed = self._items if places is None else places[:1]
        self._weighed = weighed if job.task != "predict" else ()
        """Numbers of the features of items: samples with null items have no weight."""
        self._next: NextItemFeed | None = None
        loss = next_item_loss(run)
        self._has_negatives = loss is not None and loss.candidates == "uniform"
        self._follow = isinstance(run.model, Esmm)
        self._workers, self._nn_workers = self._session.connect("embedding-worker"), self._session.connect("nn-worker")
        rows = {TRAIN: job.train_rows if job.steps else 0, EVAL: job.eval_rows}
        try:
            if run.follows is not None and job.task == "train":
                self._follow_data(run)
            else:
                self._open_feeds(run, job, rows)
            if rows[TRAIN] and loss is not None and places is not None:
                self._next = NextItemFeed(loss, *places, self._find_items(run, places[0]), run.seed)
            if self._feeds and self._session.sender.incarnation == 1 and run.follows is None:
                self._read_ahead(job.first_step)
            self._session.waited_s = lambda: self._waited_s
            self._session.counters, self._session.changes.on_restart = self._counters, self._on_restart
            self._session.ready(lambda number, work: None)
            while not self._session.stop:
                for feed in self._feeds:
                    while self._advance(feed):
                        pass
                # Before the wait, since the end of a read ends it.
                is_reading = any(feed.is_reading for feed in self._feeds)
                idle_s = self._loop.idle_s
                self._loop.poll(0.2)
                if not is_reading:
                    self._waited_s += self._loop.idle_s - idle_s
            self._session.farewell()
        finally:
            self._close()

    def _close(self) -> None:
        """End the reader and the sources; skip a source whose read is stuck, since waiting would hide an error."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        wait([batch for feed in self._feeds for batch in feed.reading], CLOSE_S)
        for feed in self._feeds:
            if all(batch.done() for batch in feed.reading):
                feed.source.close()

    def _open_feeds(self, run: Run, job: Job, rows: Mapping[int, int]) -> None:
        """Open the splits that have so many rows; raise DataError if this loader sees other data than was planned."""
        found = scanned(run.dataset)
        for split, name in SPLIT_NAMES.items():
            if not rows[split]:
                continue
            source = open_source(run.dataset, name, run.seed, run.links, trains_on_queries(run), found)
            grid = StepGrid(rows[split], run.train.batch, self._ranks)
            if split == TRAIN and job.benchmark and job.benchmark.ring:
                source = Ring(source, job.benchmark.ring, run.train.batch, self._loop.empty)
            self._feeds.append(Feed(split, source, grid, limits=[0] * self._ranks, finished=[0] * self._ranks))
            if source.rows != rows[split]:
                raise DataError(
                    f"{self._session.name} sees {source.rows} {name} samples and the job was planned with "
                    f"{rows[split]}; give every loader the same files"
                )
            if job.train_data not in (None, source.train_data):
                raise DataError(
                    "it sees other training files or row groups than the job was planned with, or others in their "
                    "place; give every loader the same files, and do not write them while a job reads them"
                )

    def _follow_data(self, run: Run) -> None:
        """Begin feeds of data that grows, whose work items name their portions."""
        assert isinstance(run.dataset, ParquetDataset)
        queries = {TRAIN: trains_on_queries(run), EVAL: has_query_ids(run)}
        for split in (TRAIN, EVAL) if run.eval.next else (TRAIN,):
            source = PortionSource(run.dataset, run.seed, run.links, queries[split])
            grid = StepGrid(0, run.train.batch, self._ranks)
            self._feeds.append(Feed(split, source, grid, limits=[0] * self._ranks, finished=[0] * self._ranks))

    def _find_items(self, run: Run, item: int) -> TrainedItems:
        """Return the items of the training rows; messages are handled meanwhile."""
        features, work = sparse_features(run), self._session.work
        found = self._reader.submit(
            trained_items,
            run.dataset,
            features,
            features[item].table_name,
            run.seed,
            run.links,
            lambda: work.begin("finding the items of the training rows"),
        )
        found.add_done_callback(lambda _: self._waker.wake())
        while not found.done():
            self._loop.poll(0.2)
        work.end()
        return found.result()

    def _read_ahead(self, first_step: int) -> None:
        """Begin to read the step that is likely to be assigned first, while other roles still start."""
        feed = self._feeds[0]
        feed.next = first_step if feed.split == TRAIN else 0
        self._read(feed)

    def _advance(self, feed: Feed) -> bool:
        """Send the feed's next step if it is read and every rank accepts it; return True if it was sent."""
        if feed.next < (first := min(feed.last, *feed.finished)):
            # A loader that died had sent these steps.
            feed.next = first
            feed.reading.clear()
        if feed.next >= feed.last:
            if not feed.is_requesting and not feed.ended:
                feed.is_requesting = True
                known = feed.source.numbers if isinstance(feed.source, PortionSource) else ()
                self._session.take_item(feed.split, min(feed.finished), known, partial(self._on_item, feed))
            return False
        while len(feed.reading) < READ_AHEAD and feed.next + len(feed.reading) < feed.last:
            self._read(feed)
        if feed.next >= feed.limit:
            self._trace.begin("wait for credit", feed.traced(feed.next))
            self._wait_for_credit(feed)
            return False
        self._trace.end("wait for credit", feed.traced(feed.next))
        if feed.is_reading or feed.ended:
            return False
        try:
            read = feed.reading[0].result()
        except UserError as error:
            feed.ended = True
            self._session.unreadable(feed.split, feed.next, str(error), (), lambda: None)
            return False
        whole = read.samples
        if whole.bad and feed.allowed != feed.next:
            if feed.reported != feed.next:
                feed.reported = feed.next
                self._session.unreadable(feed.split, feed.next, whole.why, whole.bad, partial(feed.allow, feed.next))
            return False
        feed.reading.popleft()
        with self._trace.span(LOOP, "send", feed.traced(feed.next)):
            self._send(feed, feed.next, read)
        feed.next += 1
        return True

    def _read(self, feed: Feed) -> None:
        step = feed.next + len(feed.reading)
        feed.reading.append(self._reader.submit(self._make_batch, feed, step, feed.traced(step)))
        feed.reading[-1].add_done_callback(partial(self._on_read, feed))

    def _on_read(self, feed: Feed, _: Future[StepBatch]) -> None:
        """Wake the loop, on the reader's thread, if a step may be sent; otherwise credit will wake it."""
        if feed.next < feed.limit:
            self._waker.wake()

    def _make_batch(self, feed: Feed, step: int, traced: int) -> StepBatch:
        """Read a step's samples, on the reader's thread; wait until they are decoded."""
        # A slow read is work, limited by `cluster.work_timeout_s`, and not a stall of the job.
        self._session.work.begin("reading samples")
        try:
            with self._trace.span("reader", "make batch", traced):
                batch = feed.source.read(*feed.grid.locate(step))
                if self._follow:
                    fill_chain(batch.labels)
                return self._weigh(feed, step, batch)
        finally:
            self._session.work.end()

    def _weigh(self, feed: Feed, step: int, batch: Batch) -> StepBatch:
        """Return a step with the weights of its samples or positions."""
        learnt = self._next if feed.split == TRAIN else None
        if learnt is None:
            batch = _without_nulls(batch, self._weighed) if self._weighed else batch
            return StepBatch(batch, weight_totals(batch.labels, batch.weights), [None] * self._ranks)
        batch = learnt.without_nulls(batch)
        ranks = [feed.grid.rows_of(step, rank) for rank in range(self._ranks)]
        return StepBatch(batch, learnt.totals(batch), learnt.log_q(batch, ranks))

    def _on_item(self, feed: Feed, item: Item) -> None:
        feed.is_requesting = False
        if item.first != feed.next:
            feed.reading.clear()
        if isinstance(feed.source, PortionSource) and item.portion:
            for portion in item.portions:
                feed.source.add(portion)
            rows = feed.source.rows_of(item.portion)
            feed.grid = replace(feed.grid, rows=rows, first_step=item.begin, epoch=item.portion)
        feed.next, feed.last, feed.ended = item.first, item.last, item.end

    def _wait_for_credit(self, feed: Feed) -> None:
        for rank, client in enumerate(self._nn_workers):
            if feed.limits[rank] > feed.next or rank in feed.waiting:
                continue
            feed.waiting.add(rank)
            client.request(
                WaitCredit(feed.split, feed.next),
                on_reply=partial(self._on_credit, feed, rank),
                waiting_for=f"credit for step {feed.next}",
            )

    def _on_credit(self, feed: Feed, rank: int, reply: Credit) -> None:
        feed.waiting.discard(rank)
        feed.limits[rank] = max(feed.limits[rank], reply.limit)
        feed.finished[rank] = max(feed.finished[rank], reply.finished)
        finished = min(feed.finished)
        for step in [step for step in feed.sent_ids if step < finished]:
            del feed.sent_ids[step]

    def _send(self, feed: Feed, step: int, read: StepBatch) -> None:
        whole, learnt = read.samples, self._next if feed.split == TRAIN else None
        finished, feed.sent_ids[step] = min(feed.finished), []
        if self._follow:
            self._unfollowed += int(np.count_nonzero(whole.labels[:, 1:] > whole.labels[:, :-1]))
        for rank in range(self._ranks):
            part = whole if self._ranks == 1 else whole.rows(*feed.grid.rows_of(step, rank))
            batch = BatchId(feed.split, step, rank)
            keys = item_keys(part, self._items) if self._items else None
            share = 0.0 if learnt is None else learnt.drawn_share
            samples = PutSamples(
                batch,
                share,
                read.weight_totals,
                part.dense,
                part.labels,
                part.weights,
                part.query_ids,
                keys,
                read.log_q[rank],
            )
            if self._has_negatives:
                part = with_negatives(part, NO_IDS if learnt is None else learnt.negatives(step, rank))
            offsets = None if is_single(part.offsets) else part.offsets
            ids = PutIds(batch, finished, part.ids, offsets)
            feed.sent_ids[step].append(ids)
            self._send_ids(ids)
            self._send_samples(samples)
        self._sent += 1

    def _send_ids(self, ids: PutIds) -> None:
        worker = self._workers[self._worker_of(ids.batch)]
        worker.request(ids, waiting_for=f"the receipt of the ids of step {ids.batch.step}")

    def _send_samples(self, samples: PutSamples) -> None:
        waiting_for = f"the receipt of the samples of step {samples.batch.step}"
        self._nn_workers[samples.batch.rank].request(samples, waiting_for=waiting_for)

    def _worker_of(self, batch: BatchId) -> int:
        return (batch.step * self._ranks + batch.rank) % len(self._workers)

    def _on_restart(self, role: str, index: int) -> None:
        """Send the ids of unfinished batches to a new process of an embedding worker."""
        if role != "embedding-worker":
            return
        for feed in self._feeds:
            for ids in [ids for step in feed.sent_ids.values() for ids in step]:
                if ids.batch.step >= feed.finished[ids.batch.rank] and self._worker_of(ids.batch) == index:
                    self._send_ids(ids)
                    self._sent_again += 1

    def _counters(self) -> Counters:
        counts: dict[str, int] = {"steps_sent": self._sent, SENT_AGAIN: self._sent_again}
        if self._unfollowed:
            counts["labels_above_the_one_before"] = self._unfollowed
        for feed in self._feeds:
            for name, count in feed.source.counts.items():
                counts[name] = counts.get(name, 0) + count
        return Counters(counts=counts)


def _without_nulls(batch: Batch, items: Sequence[int]) -> Batch:
    """Return a batch with weight 0 for samples without an item, so that a softmax over items ignores them."""
    there = has_item(batch, items).astype(np.float32)
    return replace(batch, weights=there if batch.weights is None else batch.weights * there)
