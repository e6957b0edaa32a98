"""The embedding server: owns a shard of every table, answers look-ups, applies updates, saves and loads."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from operator import gt

from msgspec import structs

from persia_cli.config.schema import Run, SyncMode
from persia_cli.control.position import TRAIN
from persia_cli.control.watermarks import StepGate
from persia_cli.errors import CheckpointError, DiskError, MemoryFileError, WireError
from persia_cli.kernels.toolchain.cache import is_ready
from persia_cli.kernels.toolchain.needs import COLD_ROWS, SAVING, SERVER, training_needs
from persia_cli.kernels.toolchain.warm import warm
from persia_cli.observe.trace import LOOP
from persia_cli.plan.job import Job, job_batches
from persia_cli.roles.embedding_server.rows import (
    close_shard,
    load_checkpoint,
    load_first_rows,
    shard_of,
    unanswered_lookups,
)
from persia_cli.roles.embedding_server.saving import IDLE_S, SavePace, ShardSaving, servers_sharing
from persia_cli.roles.session import CoordinatorSession
from persia_cli.roles.task_thread import TaskThread
from persia_cli.storage.locations import location_of
from persia_cli.store.batch_rows import Merged, merge_gradients
from persia_cli.store.checkpoints.manifest import EMBEDDINGS
from persia_cli.store.checkpoints.row_files import Progress
from persia_cli.store.memory_file import LOAD
from persia_cli.store.requests import LOOK_UP, UPDATE, NewKeys, answers_as_before
from persia_cli.store.table_counters import OF_COLD
from persia_cli.wire.job_messages import FINISHED, Counters, PhaseWork, SaveModel, TrainSteps
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import BatchId
from persia_cli.wire.messages import Ack, GroupGradients, LookedUp, LookedUpRows, LookUp, Update
from persia_cli.wire.server import Peer

log = logging.getLogger(__name__)


class EmbeddingServer:
    """Serves one shard; every method runs on the poll loop's thread."""

    def __init__(
        self,
        loop: Loop,
        session: CoordinatorSession,
        bind: str,
        advertise: str | None = None,
        memory_file: int | None = None,
    ) -> None:
        """`memory_file` is the descriptor of the file for its memory, if the parent process holds one open."""
        self._loop, self._session, self._memory_file = loop, session, memory_file
        self._server, self._waker = loop.serve(bind), loop.waker()
        self._address = advertise or self._server.address
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"{session.name}-files")
        self._readers = ThreadPoolExecutor(1)
        self._loader = TaskThread(f"{session.name}-rows", self._waker.wake)
        self._looked_up: dict[BatchId, list[NewKeys]] = {}
        """Training batches that are looked up and not yet updated: the keys of each group without a row."""
        self._updates = {"applied": 0, "repeated": 0, "rows_written": 0, "save_pauses": 0, "save_waits_ms": 0}
        self._saving: ShardSaving | None = None
        self._saved_step, self._loading = 0, Progress()
        self._waiting: deque[tuple[Peer, LookUp]] = deque()
        """Look-ups that wait for the progress of a checkpoint, in the order of arrival."""
        self._waiting_since: float | None = None
        self._early: dict[tuple[int, BatchId], tuple[Peer, LookUp | Update]] = {}
        """Early requests (`_is_early`); a repeat replaces the first."""
        self._deadline = float("inf")

    def run(self) -> None:
        """Serve until the job is over."""
        warm([SERVER])
        run, job = self._session.join(self._address)
        self._trace = self._session.trace
        self._prepare(run, job)
        try:
            self._serve(run, job)
        finally:
            self._readers.shutdown(wait=False, cancel_futures=True)
            close_shard(self._shard, run, job, self._session.index)

    def _serve(self, run: Run, job: Job) -> None:
        """Compile kernels, load rows, and answer requests until the job is over."""
        if run.embedding.cold is not None:
            warm([COLD_ROWS], on_kernel=lambda: self._loop.poll(0))
        if job.task == "train":
            kinds = [group.optimizer.kind for group in self._shard.layout.groups]
            needs = training_needs(kinds, self._shard.memory.outlives)
            needs += [] if is_ready(SAVING) else [SAVING]
            warm(needs, on_kernel=lambda: self._loop.poll(0))
        self._server.on(LookUp, self._on_look_up)
        self._server.on(Update, self._on_update)
        self._session.counters = self._counters
        if self._took_over:
            self._ready(0)
        elif job.load:
            self._read(partial(load_checkpoint, self._shard, location_of(job.load), self._loading))
        elif job.warm:
            self._read(partial(load_first_rows, self._shard, job.warm, self._loading))
        else:
            self._ready(0)
        try:
            while not self._session.stop:
                self._loop.poll(IDLE_S if self._saving is None else self._saving.patience_s(bool(self._waiting)))
                self._loader.tick()
                self._save_on()
                self._check_deadline()
            self._session.farewell()
        finally:
            if self._saving is not None:
                self._saving.abandon()
            self._writer.shutdown(wait=False, cancel_futures=True)  # a stalled disk must not hide an error
            self._loader.close(0.0)

    def _prepare(self, run: Run, job: Job) -> None:
        if run.embedding.cold is not None:
            self._readers = ThreadPoolExecutor(run.embedding.cold.threads, f"{self._session.name}-reads")
        self._shard, repairs = shard_of(
            run, job, self._session.sender, self._memory_file, self._loop.empty, self._readers
        )
        self._applied, self._took_over = self._shard.applied, repairs is not None
        if repairs is not None:
            self._looked_up = unanswered_lookups(self._shard, run.cluster.nn_workers)
            self._updates |= {"applied": self._shard.updates, FINISHED: int(repairs.request is not None)}
        self._servers = servers_sharing(run.cluster, self._session.index)
        self._groups, self._patience_s = len(self._shard.layout.groups), run.cluster.silence_timeout_s
        self._job_batches = job_batches(run, job)
        # In a sync job of several ranks, gradients are summed by key, so an update has other keys than its look-up.
        self._remembers_rows = not isinstance(run.mode, SyncMode) or run.cluster.nn_workers == 1
        self._staleness = None if isinstance(run.mode, SyncMode) else run.mode.staleness
        """Steps that a look-up may be ahead of its rank's applied steps; None in sync mode, where all ranks count."""
        self._gate = StepGate[tuple[Peer, LookUp], tuple[Peer, Update]](run.cluster.nn_workers)

    def _read(self, read: Callable[[], int]) -> None:
        """Read rows on another thread, so that heartbeats continue; then report ready."""
        self._session.work.begin("reading its rows")
        self._loader.run("reading its rows", read, self._on_read)

    def _on_read(self, rows: int) -> None:
        self._session.work.end()
        self._ready(rows)

    def _ready(self, rows: int) -> None:
        self._shard.serve()
        self._deadline = time.monotonic() + self._patience_s
        self._session.ready(self._on_instruction, rows=rows)

    # The request that an earlier process began

    def _is_early(self, kind: int, batch: BatchId) -> bool:
        """Return whether a request must wait for the one that an earlier process began.

        No other may change rows until its senders repeat that one, which continues it.
        """
        pending = self._shard.pending
        return pending is not None and (kind, batch.step, batch.rank) not in {
            (pending.kind, pending.step, rank) for rank in pending.ranks
        }

    def _answer_early(self) -> None:
        """Handle the early requests in the order of arrival, once none is early."""
        if not self._early or self._shard.pending is not None:
            return
        requests, self._early = self._early, {}
        for peer, message in requests.values():
            if isinstance(message, LookUp):
                self._take_look_up(peer, message)
            else:
                self._take_update(peer, message)

    def _check_deadline(self) -> None:
        """Raise MemoryFileError if the request that an earlier process began was not repeated in time."""
        if time.monotonic() > self._deadline:
            if self._shard.pending is not None:
                raise MemoryFileError(
                    f"{self._shard.pending}, which the earlier process had begun, has not come again within "
                    f"{self._patience_s:g} s: {LOAD}"
                )
            self._deadline = float("inf")

    # Look-ups

    def _on_look_up(self, peer: Peer, message: LookUp) -> None:
        self._check_batch(message)
        self._check_count(message.groups)
        for number, group in enumerate(message.groups):
            self._shard.check(number, *group, message.batch.step)
        sizes = [group.keys.size for group in message.groups]
        if message.drawn and (len(message.drawn) != len(sizes) or any(map(gt, message.drawn, sizes))):
            raise WireError(f"of {sizes} keys, {list(message.drawn)} cannot be drawn ones")
        if message.create and self._is_early(LOOK_UP, message.batch):
            self._early[LOOK_UP, message.batch] = peer, message
            return
        self._take_look_up(peer, message)
        self._answer_early()

    def _take_look_up(self, peer: Peer, message: LookUp) -> None:
        batch = message.batch
        if message.create and not self._is_due((peer, message)):
            self._gate.defer_look_up(batch.step, batch.rank, (peer, message))
            self._trace.begin("look-up held", batch)
            return
        self._answer_in_turn(peer, message)
        self._answer_held()

    def _is_due(self, request: tuple[Peer, LookUp]) -> bool:
        """Return whether the steps that a training look-up must see are applied.

        In sync mode these are all earlier steps, and the look-ups of lower ranks must be answered.
        """
        batch, step = request[1].batch, self._applied.lowest + 1
        if self._staleness is not None:
            return batch.step <= self._applied.watermark(batch.rank) + self._staleness
        # New ids get rows in the order of ranks, so that the result does not depend on timing.
        before = (structs.replace(batch, rank=rank) for rank in range(batch.rank))
        return batch.step < step or (batch.step == step and all(map(self._is_looked_up, before)))

    def _answer_held(self) -> None:
        for peer, message in self._gate.released(self._is_due):
            self._answer_in_turn(peer, message)

    def _answer_in_turn(self, peer: Peer, message: LookUp) -> None:
        """Answer a look-up at once, or when the present checkpoint has copied the rows that it changes."""
        if not self._has_space(message) or (message.create and self._waiting):
            self._waiting.append((peer, message))
            self._waiting_since = self._waiting_since or time.monotonic()
            return
        self._answer(peer, message)

    def _answer(self, peer: Peer, message: LookUp) -> None:
        batch, shard = message.batch, self._shard
        # A repeat changes nothing: ids would be counted twice.
        is_repeat = self._is_looked_up(batch) or self._applied.is_applied(batch.rank, batch.step)
        self._trace.end("look-up held", batch)
        with self._trace.span(LOOP, "look-up", batch):
            if message.create and not is_repeat:
                kept_as = batch if self._remembers_rows else None
                answers = shard.look_up_batch(message.groups, batch.step, batch.rank, kept_as, message.drawn)
                self._looked_up[batch] = [new for _, new in answers]
            else:
                answers = [shard.read(number, *group) for number, group in enumerate(message.groups)]
                if before := self._looked_up.get(batch):
                    answers = answers_as_before(answers, before)
        groups = [LookedUpRows(rows, new.positions) for rows, new in answers]
        self._server.reply(peer, LookedUp(self._applied.watermark(batch.rank), shard.totals(), groups))

    def _is_looked_up(self, batch: BatchId) -> bool:
        """Return whether a batch of training was answered, or might have been by an earlier process."""
        return self._applied.is_looked_up(batch.rank, batch.step)

    # Updates

    def _on_update(self, peer: Peer, message: Update) -> None:
        self._check_batch(message)
        self._check_update(message.batch, message.groups)
        if self._is_early(UPDATE, message.batch):
            self._early[UPDATE, message.batch] = peer, message
            return
        self._take_update(peer, message)
        self._answer_early()

    def _take_update(self, peer: Peer, message: Update) -> None:
        batch = message.batch
        # This check is what makes updates exactly-once: a batch in the window of applied steps changes nothing.
        if self._applied.is_applied(batch.rank, batch.step):
            self._updates["repeated"] += 1
            self._server.reply(peer, Ack())
        elif self._staleness is None:
            self._gate.defer_update(batch.step, batch.rank, (peer, message))
            self._trace.begin("update held", batch)
            self._apply_complete_steps()
        else:
            self._apply(batch, message.groups, [batch.rank], message.reductions)
            self._server.reply(peer, Ack())
            self._answer_held()

    def _apply_complete_steps(self) -> None:
        while requests := self._gate.complete(self._applied.lowest):
            updates = [update for _, update in requests]
            for update in updates:
                self._trace.end("update held", update.batch)
            groups: Sequence[Merged] = updates[0].groups if len(updates) == 1 else self._merge(updates)
            self._apply(updates[0].batch, groups, [update.batch.rank for update in updates], updates[0].reductions)
            for peer, _ in requests:
                self._server.reply(peer, Ack())
            self._answer_held()

    def _merge(self, updates: Sequence[Update]) -> list[Merged]:
        """Sum the ranks' gradients per row, in the order of ranks, as float32."""
        by_group = zip(self._shard.layout.groups, *(update.groups for update in updates), strict=True)
        return [merge_gradients(parts, group.dim, group.wire) for group, *parts in by_group]

    def _apply(self, batch: BatchId, groups: Sequence[Merged], ranks: list[int], reductions: int) -> None:
        """Apply a validated update: that of one rank, or the sum of all ranks of the batch's step."""
        looked_up = batch if self._remembers_rows else None
        with self._trace.span(LOOP, "update", batch):
            self._shard.update_batch(groups, batch.step, ranks, looked_up, reductions)
        self._updates["applied"] = self._shard.updates
        for rank in ranks:
            self._looked_up.pop(structs.replace(batch, rank=rank), None)

    def _check_batch(self, message: LookUp | Update) -> None:
        """Raise WireError for a batch that this job cannot have now."""
        batch = message.batch
        self._job_batches.size(batch.split, batch.step, batch.rank)
        if batch.split == TRAIN:
            self._applied.check(batch.rank, batch.step)

    def _check_update(self, batch: BatchId, groups: list[GroupGradients]) -> None:
        """Raise WireError unless the whole update can be applied, so that none is applied in part."""
        if batch.split != TRAIN:
            raise WireError("an evaluation has no updates")
        self._check_count(groups)
        for number, group in enumerate(groups):
            self._shard.check_update(number, *group, batch.step)

    def _check_count(self, groups: Sequence[object]) -> None:
        if len(groups) != self._groups:
            raise WireError(f"expected arrays of {self._groups} feature groups, received those of {len(groups)}")

    # Checkpoints

    def _on_instruction(self, number: int, work: PhaseWork) -> None:
        if isinstance(work, TrainSteps) and work.expires:
            self._shard.expire(work.expires)
        if not isinstance(work, SaveModel):
            return
        folder = location_of(work.folder) / EMBEDDINGS
        if number == self._shard.saves[0]:
            self._session.done(number)
            self._session.saved(work.step, (), f"{self._session.name} died while it wrote its rows")
            return
        if self._saving is not None:
            raise RuntimeError(f"the checkpoint of step {self._saved_step} is still being written")
        self._shard.saves[0] = number
        # Changes from here on do not belong to the checkpoint, so training may continue.
        pace = SavePace(self._servers, work.awaited)
        saving = self._shard, folder, self._writer, self._waker.wake, self._count_written, pace, work.since
        self._saving = ShardSaving(*saving)
        self._saved_step = work.step
        self._session.work.begin("writing its rows")
        self._session.done(number)

    def _save_on(self) -> None:
        """Copy some rows of the present checkpoint, and answer look-ups that waited for that."""
        if self._saving is None:
            return
        self._saving.copy_if_due(bool(self._waiting))
        if self._saving.done:
            saving, self._saving = self._saving, None
            self._session.work.end()
            self._updates["save_pauses"] += saving.pauses
            try:
                self._session.saved(self._saved_step, saving.finish())
            except (DiskError, CheckpointError) as error:
                self._session.saved(self._saved_step, (), str(error))
        while self._waiting and self._has_space(self._waiting[0][1]):
            self._answer(*self._waiting.popleft())
        self._answer_held()
        if not self._waiting and self._waiting_since is not None:
            self._updates["save_waits_ms"] += round(1000 * (time.monotonic() - self._waiting_since))
            self._waiting_since = None

    def _has_space(self, message: LookUp) -> bool:
        """Return whether the rows that a look-up changes can be copied for the present checkpoint first."""
        return self._saving is None or self._saving.has_space(message.groups, message.create)

    def _count_written(self, rows: int) -> None:
        self._updates["rows_written"] += rows

    def _counters(self) -> Counters:
        tables = {name: asdict(counters) for name, counters in self._shard.counters().items()}
        if all(store.cold is None for store in self._shard.stores):
            tables = {
                name: {key: counts[key] for key in counts if key not in OF_COLD} for name, counts in tables.items()
            }
        loaded = {"bytes_verified": self._loading.bytes_read, "rows_loaded": self._loading.rows_loaded}
        return Counters(self._updates, tables, loaded)
