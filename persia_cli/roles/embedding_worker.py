"""The embedding worker: turns ids into rows and gradients into updates, and counts the ids that have a row."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from persia_cli.control.position import EVAL, TRAIN
from persia_cli.control.watermarks import Window
from persia_cli.errors import WireError
from persia_cli.kernels.toolchain.needs import WORKER
from persia_cli.kernels.toolchain.warm import warm
from persia_cli.observe.trace import LOOP
from persia_cli.plan.embedding import embedding_layout, step_layout
from persia_cli.plan.job import job_batches
from persia_cli.roles.session import CoordinatorSession
from persia_cli.roles.task_thread import TaskThread
from persia_cli.store.batch_rows import RowPlanner, UniqueRows, dense_rows
from persia_cli.store.layout import NEGATIVES, EmbeddingLayout
from persia_cli.store.table_counters import known_of, reads_of
from persia_cli.store.wire_rows import row_bytes
from persia_cli.wire.client import Client
from persia_cli.wire.job_messages import Counters
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import Array, BatchId, Message
from persia_cli.wire.messages import (
    Ack,
    GroupGradients,
    GroupKeys,
    GroupRows,
    LookedUp,
    LookUp,
    Pull,
    PullWeights,
    PushGradients,
    PutIds,
    ReadRows,
    Rows,
    Update,
)
from persia_cli.wire.server import Peer

PLANNER = "planner"
"""Name of the thread that plans batches, in traces."""

WINDOW_STEPS = 4096
"""Steps that a rank can be ahead of the oldest of another: above the greatest staleness and the loaders' lead."""


@dataclass(slots=True)
class PlannedBatch:
    """A batch from PutIds to the last server's ack of its update."""

    groups: list[UniqueRows]
    answered: bool = False
    ids: tuple[int, int] = (0, 0)
    """Number of ids of the batch, and of those without a row in its first answer."""
    pull: Peer | None = None
    push: Peer | None = None
    replies: dict[int, LookedUp] = field(default_factory=dict)
    """Answers by the number of their server."""
    looking_up: bool = False
    unacked: set[int] = field(default_factory=set)


class EmbeddingWorker:
    """Serves loaders and NN workers; every method but `_plan` runs on the poll loop's thread."""

    def __init__(self, loop: Loop, session: CoordinatorSession, bind: str, advertise: str | None = None) -> None:
        self._loop = loop
        self._session = session
        self._server = loop.serve(bind)
        self._address = advertise or self._server.address
        self._batches: dict[BatchId, PlannedBatch] = {}
        self._waker, self._reads_planned = loop.waker(), 0
        self._planning = TaskThread(f"{session.name}-planner", self._wake_if_awaited)
        """Its kernels hold no GIL, so messages of other batches do not wait for a plan."""
        self._in_planning: dict[BatchId, list[Peer]] = {}
        """The requests that each plan answers: a loader sends ids again to a new process, or in place of a dead one."""
        self._early: dict[BatchId, dict[type[Message], tuple[Peer, Pull | PushGradients]]] = {}
        """Requests that wait for the ids of their batches; gradients, if an earlier process had sent the rows."""
        self._dense_rows: dict[int, UniqueRows] = {}
        """The rows of dense weights by their number, which is the same for all batches."""
        self._finished: dict[int, Window] = {}
        self._servers: list[Client] = []

    def run(self) -> None:
        """Serve until the job is over."""
        warm([WORKER])
        run, job = self._session.join(self._address)
        self._trace = self._session.trace
        layout = step_layout(run)
        servers = run.cluster.embedding_servers
        self._planner = RowPlanner(layout, servers, self._loop.empty)
        self._reads = RowPlanner(embedding_layout(run), servers, self._loop.empty)
        """The planner of ids outside a batch, which have no drawn negatives."""
        self._workers = run.cluster.embedding_workers
        self._ranks = run.cluster.nn_workers
        self._features = len(layout.features)
        self._known_ids = KnownIds(layout)
        self._session.counters = lambda: Counters(tables=self._known_ids.by_table())
        self._job_batches = job_batches(run, job)
        limit, trained = WINDOW_STEPS * self._ranks, self._batches_before(job.first_step)
        self._finished = {TRAIN: Window(watermark=trained - 1, limit=limit), EVAL: Window(limit=limit)}
        self._restarted = self._session.sender.incarnation > 1
        self._groups, self._dense = layout.groups, layout.dense_group
        self._servers = self._session.connect("embedding-server")
        self._server.on(PutIds, self._on_put_ids)
        self._server.on(Pull, self._on_pull)
        self._server.on(PullWeights, self._on_pull_weights)
        self._server.on(ReadRows, self._on_read_rows)
        self._server.on(PushGradients, self._on_push)
        self._session.ready(lambda number, work: None)
        try:
            while not self._session.stop:
                self._loop.poll(0.2)
                self._planning.tick()
        finally:
            self._planning.close()
        self._session.farewell()

    # Ids

    def _on_put_ids(self, peer: Peer, message: PutIds) -> None:
        batch = message.batch
        size = self._check_batch(batch, _samples_of(message, self._features))
        if message.finished > batch.step:
            raise WireError(f"ids of step {batch.step} arrived after all steps before {message.finished} had finished")
        self._skip_finished(batch.split, message.finished)
        self._finished[batch.split].check(self._sequence(batch))
        if batch in self._in_planning:
            self._in_planning[batch].append(peer)
            return
        if self._is_finished(batch) or batch in self._batches:
            self._server.reply(peer, Ack())
            return
        self._in_planning[batch] = [peer]
        plan = partial(self._plan, self._planner, batch, message.ids, message.offsets, size)
        self._planning.run("planning", plan, partial(self._on_planned, batch))

    def _plan(
        self, planner: RowPlanner, batch: BatchId, ids: Array, offsets: Array | None, size: int
    ) -> list[UniqueRows] | WireError:
        """Plan a batch, on the planner's thread; return the error of one that is malformed."""
        with self._trace.span(PLANNER, "plan", batch):
            try:
                return planner.plan(ids, offsets, size)
            except WireError as error:
                return error

    def _wake_if_awaited(self) -> None:
        """Wake the loop, on the planner's thread, if a request waits for a plan; any other can wait for a message."""
        if self._early or self._reads_planned:
            self._waker.wake()

    def _on_planned(self, batch: BatchId, planned: list[UniqueRows] | WireError) -> None:
        peers = self._in_planning.pop(batch)
        if isinstance(planned, WireError):
            for peer in peers:
                self._server.refuse(peer, planned)
            return
        if not self._is_finished(batch):
            self._batches[batch] = PlannedBatch(planned)
            for peer, message in self._early.pop(batch, {}).values():
                if isinstance(message, Pull):
                    self._look_up(peer, message)
                else:
                    self._apply_push(peer, message)
        for peer in peers:
            self._server.acknowledge(peer)

    def _skip_finished(self, split: int, step: int) -> None:
        """Mark all batches before the step as finished; most of them an earlier process handled."""
        if self._finished[split].skip(self._batches_before(step) - 1):
            for batch in [batch for batch in self._batches if batch.split == split and batch.step < step]:
                del self._batches[batch]

    # Look-ups

    def _on_pull(self, peer: Peer, message: Pull) -> None:
        self._check_batch(message.batch)
        self._check_dense_rows(message.dense_rows)
        if self._is_finished(message.batch):
            self._server.reply(peer, Ack())
        elif message.batch in self._batches:
            self._look_up(peer, message)
        else:
            self._defer(peer, message)

    def _look_up(self, peer: Peer, message: Pull) -> None:
        batch = message.batch
        planned = self._batches[batch]
        planned.pull = peer
        if planned.looking_up:
            return
        if len(planned.groups) < len(self._groups):
            planned.groups.append(self._rows_of_weights(message.dense_rows))
        planned.looking_up = True
        self._trace.begin("look-up", batch)
        planned.replies = {}
        for server, client in enumerate(self._servers):
            keys = [keys_of(server, rows) for rows in planned.groups]
            client.request(
                LookUp(batch, batch.split == TRAIN, drawn_of(server, planned.groups), keys),
                on_reply=partial(self._on_rows, batch, server),
                waiting_for=f"the rows of step {batch.step}",
            )

    def _on_rows(self, batch: BatchId, server: int, reply: LookedUp) -> None:
        planned = self._batches.get(batch)
        if planned is None:
            return  # the rows of a repeated pull, which arrived after the end of the batch
        planned.replies[server] = reply
        if len(planned.replies) < len(self._servers) or planned.pull is None:
            return
        self._trace.end("look-up", batch)
        replies = [planned.replies[server] for server in range(len(self._servers))]
        if not planned.answered:
            unknown = [[group.unknown for group in reply.groups] for reply in replies]
            planned.ids = self._known_ids.add(planned.groups, unknown, batch.split == TRAIN)
        with self._trace.span(LOOP, "forward rows", batch):
            staleness = batch.step - min(reply.watermark for reply in replies)
            totals = tuple(reply.totals for reply in replies)
            groups = rows_of(dict(enumerate(planned.groups)), replies)
            self._server.reply(planned.pull, Rows(staleness, totals, *planned.ids, groups))
        planned.answered = True
        planned.looking_up = False
        planned.replies = {}
        planned.pull = None

    # Reads without changes: servers create no rows, and mark none as used

    def _on_pull_weights(self, peer: Peer, message: PullWeights) -> None:
        self._check_batch(message.batch)
        self._check_dense_rows(message.dense_rows)
        weights = self._rows_of_weights(message.dense_rows)
        self._read(peer, message.batch, {len(self._groups) - 1: weights}, "the dense weights")

    def _on_read_rows(self, peer: Peer, message: ReadRows) -> None:
        self._check_batch(message.batch)
        plan = partial(self._plan, self._reads, message.batch, message.ids, message.offsets, message.size)

        def on_planned(planned: list[UniqueRows] | WireError) -> None:
            self._reads_planned -= 1
            if isinstance(planned, WireError):
                self._server.refuse(peer, planned)
            else:
                self._read(peer, message.batch, dict(enumerate(planned)), "rows to be read")

        self._reads_planned += 1
        self._planning.run("planning", plan, on_planned)

    def _read(self, peer: Peer, batch: BatchId, groups: Mapping[int, UniqueRows], waiting_for: str) -> None:
        """Answer the peer with rows of some groups, by group number, under the id of a batch of its rank."""
        replies: dict[int, LookedUp] = {}

        def on_rows(server: int, reply: LookedUp) -> None:
            replies[server] = reply
            if len(replies) == len(self._servers):
                answers = [replies[number] for number in range(len(replies))]
                self._server.reply(peer, Rows(0, (), 0, 0, rows_of(groups, answers)))

        for server, client in enumerate(self._servers):
            numbers = range(len(self._groups))
            keys = [keys_of(server, groups[number]) if number in groups else NO_KEYS for number in numbers]
            request = LookUp(batch, create=False, drawn=(), groups=keys)
            client.request(request, on_reply=partial(on_rows, server), waiting_for=waiting_for)

    # Dense weights

    def _rows_of_weights(self, count: int) -> UniqueRows:
        if self._dense is None:
            raise WireError("this job stores no dense weights on embedding servers")
        if count not in self._dense_rows:
            self._dense_rows[count] = dense_rows(self._dense, len(self._servers), count)
        return self._dense_rows[count]

    def _check_dense_rows(self, count: int) -> None:
        most = self._dense.capacity if self._dense else 0
        if count > most:
            raise WireError(f"{count} rows of dense weights were requested, but this job has at most {most}")

    # Updates

    def _on_push(self, peer: Peer, message: PushGradients) -> None:
        batch = message.batch
        self._check_batch(batch)
        if self._is_finished(batch):
            self._server.reply(peer, Ack())
            return
        if batch in self._batches:
            self._apply_push(peer, message)
            return
        if not self._restarted:
            raise WireError(f"gradients of step {batch.step} and rank {batch.rank} arrived before its rows were sent")
        self._defer(peer, message)

    def _apply_push(self, peer: Peer, message: PushGradients) -> None:
        batch = message.batch
        planned = self._batches[batch]
        if not planned.answered and not self._restarted:
            raise WireError(f"gradients of step {batch.step} and rank {batch.rank} arrived before its rows were sent")
        if batch.split == TRAIN and len(planned.groups) < len(self._groups) == len(message.groups):
            planned.groups.append(self._rows_of_weights(message.groups[-1].shape[0]))
        if batch.split == TRAIN:
            self._check_gradients(planned, message.groups)
        planned.push = peer
        if batch.split != TRAIN:
            self._finish(batch)
        elif not planned.unacked:
            self._trace.begin("update", batch)
            with self._trace.span(LOOP, "forward gradients", batch):
                self._update(batch, planned, message.groups, message.reductions)

    def _check_gradients(self, planned: PlannedBatch, gradients: list[Array]) -> None:
        expected = [
            (0 if group.is_frozen else rows.keys.size, row_bytes(group.dim, group.wire))
            for rows, group in zip(planned.groups, self._groups, strict=True)
        ]
        if [array.shape for array in gradients] != expected:
            raise WireError(
                f"expected gradients of shapes {expected}, rows and their bytes as encoded, "
                f"received {[array.shape for array in gradients]}"
            )

    def _update(self, batch: BatchId, planned: PlannedBatch, gradients: list[Array], reductions: int) -> None:
        planned.unacked = set(range(len(self._servers)))
        for server, client in enumerate(self._servers):
            groups = []
            for spec, group, gradient in zip(self._groups, planned.groups, gradients, strict=True):
                part = slice(0) if spec.is_frozen else slice(group.bounds[server], group.bounds[server + 1])
                groups.append(GroupGradients(group.keys[part], group.tables[part], gradient[part]))
            client.request(
                Update(batch, reductions, groups),
                on_reply=partial(self._on_applied, batch, server),
                waiting_for=f"the update of step {batch.step}",
            )

    def _on_applied(self, batch: BatchId, server: int, _: Ack) -> None:
        planned = self._batches.get(batch)
        if planned is None:
            return  # an earlier process had sent the update, and the loader has reported the batch as finished
        planned.unacked.discard(server)
        if not planned.unacked:
            self._trace.end("update", batch)
            self._finish(batch)

    def _finish(self, batch: BatchId) -> None:
        planned = self._batches.pop(batch)
        self._finished[batch.split].mark(self._sequence(batch))
        # A pull repeated after its answer was sent may still wait for rows; they are not needed any more.
        for peer in (planned.push, planned.pull):
            if peer is not None:
                self._server.reply(peer, Ack())

    def _check_batch(self, batch: BatchId, given: int = 0) -> int:
        """Return the number of samples of the batch; raise WireError if this job and worker do not have it.

        Of data that grows it is the number `given` by its ids.
        """
        size = self._job_batches.size(batch.split, batch.step, batch.rank, given)
        if (batch.step * self._ranks + batch.rank) % self._workers != self._session.index:
            raise WireError(f"step {batch.step} of rank {batch.rank} belongs to another embedding worker")
        if not self._restarted:
            self._finished[batch.split].check(self._sequence(batch))
        return size

    def _defer(self, peer: Peer, message: Pull | PushGradients) -> None:
        """Handle a request once its ids are planned; raise WireError if more wait than ranks can have permits for."""
        if len(self._early) >= WINDOW_STEPS * self._ranks:
            step = message.batch.step
            raise WireError(f"too many requests wait for the ids of their batches; the newest is for step {step}")
        self._early.setdefault(message.batch, {})[type(message)] = peer, message

    def _is_finished(self, batch: BatchId) -> bool:
        return self._finished[batch.split].done(self._sequence(batch))

    def _sequence(self, batch: BatchId) -> int:
        """Number the batches of a split that come to this worker 0, 1, 2, … (they are every E-th of all)."""
        return (batch.step * self._ranks + batch.rank) // self._workers

    def _batches_before(self, step: int) -> int:
        """Count the batches of the steps before this one that come to this worker."""
        return (step * self._ranks + self._workers - 1 - self._session.index) // self._workers


def _samples_of(message: PutIds, features: int) -> int:
    """Return the number of samples that ids are of; their planner checks it."""
    return (len(message.ids) if message.offsets is None else len(message.offsets) - 1) // max(features, 1)


NO_KEYS = GroupKeys(np.empty(0, np.uint64), np.empty(0, np.uint16))


def keys_of(server: int, rows: UniqueRows) -> GroupKeys:
    """Return the keys of a group's rows that a server owns."""
    part = slice(rows.bounds[server], rows.bounds[server + 1])
    return GroupKeys(rows.keys[part], rows.tables[part])


def drawn_of(server: int, groups: Sequence[UniqueRows]) -> tuple[int, ...]:
    """Return the number of a server's keys of each group that only drawn negatives have; nothing if none has any."""
    counts = tuple(0 if rows.drawn is None else int(rows.drawn[server]) for rows in groups)
    return counts if any(counts) else ()


def rows_of(groups: Mapping[int, UniqueRows], answers: Sequence[LookedUp]) -> list[GroupRows]:
    """Return the rows of some groups from the answers of all servers, in the order of servers."""
    return [
        GroupRows([answer.groups[number].rows for answer in answers], group.inverse, group.offsets)
        for number, group in groups.items()
    ]


class KnownIds:
    """The counts of an embedding worker's answered look-ups; an id counts as often as it occurs in a batch.

    An id of a hash stack counts once per round. Training counts as `look_ups` and `look_ups_known`, evaluation and
    prediction as `reads` and `reads_known`. Reads are counted for each feature too (`reads_of` and `known_of`), unless
    it is the only feature of a table with the same name. Drawn negatives do not count.
    """

    def __init__(self, layout: EmbeddingLayout) -> None:
        names = {table.number: table.name for table in layout.tables()}
        self._tables = [
            [names[layout.features[feature].table] for feature in layout.features_of(group.number)]
            for group in layout.feature_groups
        ]
        read = Counter(feature.table for feature in layout.features)
        self._separate_features = [
            [
                None
                if feature.pooling == NEGATIVES or (read[feature.table] == 1 and feature.name == names[feature.table])
                else feature.name
                for feature in map(layout.features.__getitem__, layout.features_of(group.number))
            ]
            for group in layout.feature_groups
        ]
        """For each group the names of its features, None for those without separate counts."""
        self._counts = {
            kind: [np.zeros((2, len(names)), np.int64) for names in self._tables] for kind in ("look_ups", "reads")
        }
        """For each kind and group the entries of its features, and those among them without a row."""

    def add(
        self, groups: Sequence[UniqueRows], unknown: Sequence[Sequence[NDArray[np.uint32]]], train: bool
    ) -> tuple[int, int]:
        """Count a batch; return the number of its look-ups, and of those that found no row.

        unknown[s][g] are the positions of server s's keys of group g that had no row.
        """
        all_entries = all_missed = 0
        for number, counts in enumerate(self._counts["look_ups" if train else "reads"]):
            rows = groups[number]
            ends = _ends(rows, counts.shape[1])
            entries = np.diff(ends, prepend=0)
            if rows.drawn is not None:
                entries[-1] = 0
            missed = _missed(rows, [of_server[number] for of_server in unknown], ends)
            counts += (entries, missed)
            all_entries, all_missed = all_entries + int(entries.sum()), all_missed + int(missed.sum())
        return all_entries, all_missed

    def by_table(self) -> dict[str, dict[str, int]]:
        """Return the counts so far by table."""
        by_table: dict[str, Counter[str]] = {name: Counter() for names in self._tables for name in names}
        for kind, groups in self._counts.items():
            for names, features, counts in zip(self._tables, self._separate_features, groups, strict=True):
                for table, feature, total, missed in zip(names, features, *counts.tolist(), strict=True):
                    if not total:
                        continue
                    of_table = {kind: total, f"{kind}_known": total - missed}
                    if feature is not None and kind == "reads":
                        of_table |= {reads_of(feature): total, known_of(feature): total - missed}
                    by_table[table].update(of_table)
        return {table: dict(counts) for table, counts in by_table.items()}


def _ends(rows: UniqueRows, features: int) -> NDArray[np.int64]:
    """Return the end of the entries of each feature in `inverse`, int64[features]."""
    if rows.offsets is None:
        return np.arange(1, features + 1) * (rows.inverse.size // features)
    return rows.offsets[:: (rows.offsets.size - 1) // features][1:].astype(np.int64)


def _missed(rows: UniqueRows, unknown: Sequence[NDArray[np.uint32]], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of entries of each feature whose key had no row, int64[features]."""
    if not any(places.size for places in unknown):
        return np.zeros(ends.size, np.int64)
    is_unknown = np.zeros(rows.keys.size, np.int8)
    for places, start in zip(unknown, rows.bounds[:-1], strict=True):
        is_unknown[places + start] = 1
    missed = np.concatenate([[0], np.cumsum(is_unknown[rows.inverse], dtype=np.int64)])
    return np.diff(missed[ends], prepend=0)
