"""The rows of one embedding server: look-up, update, counters."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import ConfigError, WireError
from persia_cli.kernels.rows import hashing
from persia_cli.kernels.rows.optimizers import Rule
from persia_cli.kernels.rows.rows import CODES
from persia_cli.kernels.table import cold, index, look_up, update
from persia_cli.kernels.table.arguments import FoundRows, KernelRequest, KernelTable, new_request
from persia_cli.kernels.table.journal import ENTRY_WORDS, GROUP, IDLE, KernelJournal, KernelProgress, whole_lines
from persia_cli.kernels.table.old_rows import OldRows
from persia_cli.kernels.toolchain.compile import Kernel
from persia_cli.kernels.toolchain.memory import Empty
from persia_cli.store.cold.cold_rows import ColdStorage
from persia_cli.store.layout import EmbeddingLayout, partitions_of
from persia_cli.store.memory_file import LOADING, PRIVATE, SERVING, MemoryFile, PrivateMemory
from persia_cli.store.remembered_rows import RememberedLookUps, RememberedRows
from persia_cli.store.requests import (
    LOOK_UP,
    NO_ROW_BIT,
    UPDATE,
    Answer,
    AppliedSteps,
    BatchRequest,
    LastAnswers,
    NewKeys,
    ProgressRecord,
)
from persia_cli.store.row_rules import expiring, row_init, rule_at
from persia_cli.store.row_store import MAX_STEP, Floats, Keys, RowStore, Tables
from persia_cli.store.snapshot import NOTHING, ShardSnapshot
from persia_cli.store.table_counters import ShardCounts, TableCounters
from persia_cli.store.wire_rows import decode_rows, row_bytes
from persia_cli.wire.message import TableTotals

Bytes = NDArray[np.uint8]
Rows = NDArray[np.int64]
Halves = NDArray[np.uint16]


class Shard:
    """The rows of the partitions that server `server` of `servers` owns, with one row store per feature group.

    `memory` provides all lasting arrays; `ranks` send requests. A look-up of training and an update of a whole batch
    (`look_up_batch`, `update_batch`) are *requests*: in a memory file each is recorded, and a journal has its position,
    so that the next process can continue it (`persia_cli.store.recovery`). Then it is `pending`, its senders repeat it,
    and until then no other request may change rows.

    Not in the file: remembered look-ups, whose rows are searched again, and copies for a snapshot, whose save fails.

    `empty` allocates the arrays that look-ups return. With `cold_storage`, rows leave memory for a disk if their group
    has space there; `begin_cold` must follow.
    """

    def __init__(
        self,
        layout: EmbeddingLayout,
        server: int,
        servers: int,
        memory: MemoryFile | PrivateMemory = PRIVATE,
        ranks: int = 1,
        empty: Empty = np.empty,
        cold_storage: ColdStorage | None = None,
    ) -> None:
        # A later process finds the arrays of the file by the order of these calls.
        self.layout, self.memory = layout, memory
        array, groups = memory.array, len(layout.groups)
        self.words: NDArray[np.uint64] = array(8, np.uint64)
        """Words of the journal of requests."""
        entries: NDArray[np.uint64] = array(2 * int(ENTRY_WORDS), np.uint64)
        self.answers = LastAnswers(array, ranks, groups, memory.outlives)
        self.applied = AppliedSteps(array, ranks)
        self._updates: NDArray[np.int64] = array(1, np.int64)
        self.saves: NDArray[np.int64] = array(1, np.int64)
        """The number of the last save that a process with this memory has begun; set when one begins."""
        self._empty = empty
        self.salts = layout.salts()
        self.stores = tuple(
            RowStore(group, partitions_of(group.partitions, server, servers), memory, cold_storage, self.salts.size)
            for group in layout.groups
        )
        self.return_words: NDArray[np.uint64] = array(8, np.uint64)
        """Words of the journal of rows that return from the cold log."""
        return_entries: NDArray[np.uint64] = array(2 * int(ENTRY_WORDS), np.uint64)
        return_rows = [
            array(2 * whole_lines(group.width) if group.cold_bytes else 0, np.float32) for group in layout.groups
        ]
        self._members = np.zeros((groups, self.salts.size), np.uint8)
        for group in layout.groups:
            self._members[group.number, [table.number for table in group.tables]] = 1
        self.counts = ShardCounts(layout, self.stores, array)
        self._remembered = tuple(RememberedLookUps() for _ in layout.groups)
        self.look_ups: NDArray[np.int64] = array(groups, np.int64)
        """Number of look-ups of each group."""
        counters = [
            self.counts.of_kernels.hits, self.counts.of_kernels.missing_gradients,
            self.counts.of_kernels.refused_gradients, self.look_ups, self._updates,
        ]  # fmt: skip
        self.record = ProgressRecord(array, ranks, groups, counters)
        self.old_rows: list[Floats] = [
            array(2 * whole_lines(group.width) if memory.outlives else 0, np.float32) for group in layout.groups
        ]
        """The old content of the row that an update changes; empty if no process could restore it."""
        rules = [row_init(layout, group, self.salts) for group in layout.groups]
        self.tables = [
            KernelTable(store.index, store.rows, NOTHING, store.log, self.counts.of_kernels, rules[n],
                  KernelJournal(self.words, self.old_rows[n], entries, np.uint64(n) << GROUP))
            for n, store in enumerate(self.stores)
        ]  # fmt: skip
        """Each group's table, as kernels take it, with the journal of requests."""
        self.returning = [
            table._replace(
                journal=KernelJournal(self.return_words, return_rows[n], return_entries, np.uint64(n) << GROUP)
            )
            for n, table in enumerate(self.tables)
        ]
        """The same with the journal of rows that return to memory, which is valid between requests too."""
        self._snapshot: ShardSnapshot | None = None

    def begin_cold(self) -> None:
        """Begin empty cold logs; raise DiskError if their files cannot be written."""
        for store in self.stores:
            if store.cold is not None:
                store.cold.begin()

    def close(self) -> None:
        """Remove the files of cold logs: all their rows are in checkpoints, or not needed."""
        for store in self.stores:
            if store.cold is not None:
                store.cold.close()

    def begin_snapshot(self, cells: int | None = None, since: int | None = None) -> ShardSnapshot:
        """Begin a snapshot of all present rows, and end the one before; see `persia_cli.store.snapshot`.

        With `since`, it has the rows last used in that step or later, and the keys that have left.
        """
        self.end_snapshot()
        self._snapshot = ShardSnapshot(self.stores, self.look_ups.tolist(), cells, since)
        return self._snapshot

    def end_snapshot(self) -> None:
        """End the snapshot: no more rows are copied for it."""
        if self._snapshot is not None:
            self._snapshot.drop()
        self._snapshot = None

    def expire(self, steps: int) -> None:
        """Let new keys take rows that were last used more than so many steps ago, from the next request on."""
        for tables in (self.tables, self.returning):
            tables[:] = [expiring(table, steps) for table in tables]

    def keys_of(self, ids: NDArray[np.uint64], tables: Tables) -> Keys:
        """Return the keys of ids of some tables."""
        keys = np.empty(ids.size, np.uint64)
        hashing.hash_ids(ids, tables, self.salts, keys)
        return keys

    def ids_of(self, keys: Keys, tables: Tables) -> NDArray[np.uint64]:
        """Return the ids of keys of some tables; reads only constant parts."""
        ids = np.empty_like(keys)
        hashing.recover_ids(keys, tables, self.salts, ids)
        return ids

    @property
    def updates(self) -> int:
        """Number of updates applied, by all processes that have had this memory."""
        return int(self._updates[0])

    @property
    def pending(self) -> BatchRequest | None:
        """The request that an earlier process began, and that was not repeated yet."""
        return self.record.request

    def serve(self) -> None:
        """Record that all rows are loaded, so that another process may take over from now on."""
        self.memory.state = SERVING

    # Requests

    def look_up_batch(
        self,
        groups: Sequence[tuple[Keys, Tables]],
        step: int,
        rank: int,
        batch: Hashable | None,
        drawn: Sequence[int] = (),
    ) -> list[Answer]:
        """Look each group's keys up, create rows for new ones, and mark the rank's step as looked up.

        Rows are remembered for the update of `batch`, unless it is None. The last keys of each group, `drawn` in
        number, are only read: they get no rows, and do not count as used.
        """
        request = BatchRequest(LOOK_UP, step, (rank,))
        sizes = [keys.size - last for (keys, _), last in zip(groups, drawn or [0] * len(groups), strict=True)]
        used = [(keys[:size], tables[:size]) for (keys, tables), size in zip(groups, sizes, strict=True)]
        self._bring_back_all(used, step)
        if self.pending is None:
            self.answers.begin(rank)
        at = self._begin(request, used)
        answers = []
        for number, ((keys, tables), size) in enumerate(zip(groups, sizes, strict=True)):
            if number > at.group or (number == at.group and not at.adding):
                answers.append(self._find_or_create(number, keys, tables, step, batch, rank, size))
            else:
                done = at.position if number == at.group else None
                answers.append(self._continue(number, keys, tables, step, rank, done, size))
        self.finish(request)
        return answers

    def update_batch(
        self,
        groups: Sequence[tuple[Keys, Tables, Bytes | Floats]],
        step: int,
        ranks: Sequence[int],
        batch: Hashable | None = None,
        reductions: int = 0,
    ) -> None:
        """Update each group's rows, and mark the step as applied for the ranks."""
        request = BatchRequest(UPDATE, step, tuple(ranks))
        self._bring_back_all([group[:2] for group in groups], step, batch)
        at = self._begin(request, groups)
        for number, (keys, tables, gradients) in enumerate(groups):
            # Finished positions are only counted.
            done = keys.size if number < at.group else at.position if number == at.group else 0
            self._update(number, keys, tables, gradients, step, batch, reductions, done)
            if number >= at.group:
                self._mark_group_done(number)
        self.finish(request)

    def _begin(self, request: BatchRequest, groups: Sequence[tuple[Any, ...]]) -> KernelProgress:
        """Record a request, or that a pending one is repeated; return the position at which to continue."""
        keys = [group[0] for group in groups]
        pending = self.pending
        if pending is not None:
            assert pending == request, f"{request} before {pending} was repeated"
            at = KernelProgress.of(int(self.words[0]))
            self.record.go_on(keys)
            return at
        # Before the record: the position of the last request must not be read as one of this request.
        self.words[0] = IDLE
        self.record.begin(request, keys)
        return KernelProgress.of(int(IDLE))

    def finish(self, request: BatchRequest) -> None:
        """Mark the steps of a finished request, and end it. A repeat changes nothing."""
        for rank in request.ranks:
            if request.kind == UPDATE:
                self.applied.mark(rank, request.step)
            else:
                self.answers.end(rank, request.step)
                self.applied.mark_looked_up(rank, request.step)
        if request.kind == UPDATE:
            # From the counter before the request, so that finishing it twice, after a kill here, counts once.
            self._updates[0] = self.record.before(self._updates) + 1
        self.record.end()
        self.words[0] = IDLE

    def _mark_group_done(self, group: int) -> None:
        """Record that the work on a group is done."""
        self.words[0] = IDLE | (np.uint64(group + 1) << GROUP)

    # Look-ups

    def look_up(
        self, group: int, keys: Keys, tables: Tables, step: int, create: bool, batch: Hashable | None = None
    ) -> Bytes:
        """Return the encoded rows of one group's keys, with `create` as `look_up_batch`, else as `read`.

        It is no request, so no process continues it. Raise WireError as `check` does.
        """
        self.check(group, keys, tables, step)
        if not create:
            return self.read(group, keys, tables)[0]
        self._bring_back(group, keys, tables, step)
        return self._find_or_create(group, keys, tables, step, batch)[0]

    def read(self, group: int, keys: Keys, tables: Tables) -> Answer:
        """Return the embeddings of distinct keys, and the keys without a row; nothing changes.

        Take keys uint64[n] and tables uint16[n], which have passed `check`; return embeddings uint8[n, row_bytes] in
        the group's wire dtype, zeros for keys without a row.
        """
        rows = np.empty(keys.size, np.int64)
        block, out = self._block(self.stores[group], keys.size)
        rowless = np.flatnonzero(self._read(group, keys, tables, rows, out) < 0).astype(np.uint32)
        return block, NewKeys(rowless, rowless)

    def _read(self, group: int, keys: Keys, tables: Tables, rows: Rows, out: Halves) -> Rows:
        """Write the embeddings of keys to `out`, and their rows in memory to `rows`, -1 for none; return the latter.

        Those returned are 0 for keys that have a row in the cold log alone.
        """
        store = self.stores[group]
        look_up.read_rows(store.index, store.rows, keys, tables, CODES[store.group.wire], rows, out)
        found = rows.copy()
        self._send_cold(store, keys, tables, found, out)
        return found

    def _block(self, store: RowStore, size: int) -> tuple[Bytes, Halves]:
        """Return memory for encoded rows, uint8[size, row_bytes], and the same memory as uint16."""
        block = self._empty((size, row_bytes(store.group.dim, store.group.wire)), np.uint8)
        return block, block.reshape(-1).view(np.uint16)

    def _find_or_create(
        self,
        group: int,
        keys: Keys,
        tables: Tables,
        step: int,
        batch: Hashable | None,
        rank: int | None = None,
        size: int | None = None,
    ) -> Answer:
        """Return the embeddings of distinct keys, as `read`, and the keys that had no row before.

        New keys get a row if they are admitted and there is space, if necessary by an eviction. Steps of last use rise
        to `step`. Without a rank, it is no request. Keys after the first `size`, if given, are only read.
        """
        size = keys.size if size is None else size
        rows = np.empty(keys.size, np.int64)
        block, out = self._block(self.stores[group], keys.size)
        old = NOTHING if self._snapshot is None else self._snapshot.before_look_up(group, keys, tables)
        self.look_ups[group] += 1
        self.stores[group].back(size)
        positions, unknown = self._space(rank, group, size)
        found = FoundRows(rows[:size], positions, unknown, out)
        self._carry_out(look_up.look_up, group, old, self._request(group, keys[:size], tables[:size], step, found))
        on_disk = False
        if size < keys.size:
            # After the others, so that none of these rows is given to another key in this look-up.
            found_too = self._read(group, keys[size:], tables[size:], rows[size:], out[size * block.shape[1] // 2 :])
            on_disk = bool((found_too != rows[size:]).any())
        stored = positions[: int(unknown[0])]
        new = stored.copy()
        # `new` is copied before the bit is set, since positions index `rows`; the stored answer has the bit.
        stored[rows[new] < 0] |= NO_ROW_BIT
        self._mark_group_done(group)
        if batch is not None:
            evictions = -1 if on_disk else self._evicted(group)
            self._remembered[group].add(batch, RememberedRows(keys, tables, rows, int(self.look_ups[group]), evictions))
        return block, NewKeys(new, new[rows[new] < 0])

    def _continue(
        self, group: int, keys: Keys, tables: Tables, step: int, rank: int, done: int | None, size: int
    ) -> Answer:
        """Answer a group's part of a repeated look-up, finished up to the new key at `done`, or whole (None).

        Keys after the first `size` are only read.
        """
        # Known keys were served before, so they are only counted.
        self.look_ups[group] += 1
        positions, unknown = self.answers.space(rank, group, size)
        stored = positions[: int(unknown[0])]
        if done is not None:
            self.stores[group].back(size)
            # The bit is set again below, since the rest of the look-up may still add or evict rows.
            stored &= ~NO_ROW_BIT
            found = FoundRows(np.empty(size, np.int64), positions, unknown, self._block(self.stores[group], size)[1])
            request = self._request(group, keys[:size], tables[:size], step, found, done)
            self._carry_out(look_up.finish_look_up, group, NOTHING, request)
        block, without = self.read(group, keys, tables)
        if done is not None:
            stored[np.isin(stored, without.rowless)] |= NO_ROW_BIT
            self._mark_group_done(group)
        new = self.answers.new_keys(rank, group)
        # `read` counts nothing, and the counters were reset, so the known keys are counted here.
        hits = self.counts.of_kernels.hits
        hits += np.bincount(tables[:size], minlength=hits.size)
        hits -= np.bincount(tables[new.positions], minlength=hits.size)
        return block, new

    def _space(self, rank: int | None, group: int, size: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return memory for the positions of new keys, uint32[size], and for their number, int64[1]."""
        if rank is None or not self.memory.outlives:
            return np.empty(size, np.uint32), np.zeros(1, np.int64)
        return self.answers.space(rank, group, size)

    def _request(
        self, group: int, keys: Keys, tables: Tables, step: int, found: FoundRows, done: int = 0
    ) -> KernelRequest:
        """Return what kernels take of a request, of which the first `done` positions are finished."""
        wire = CODES[self.stores[group].group.wire]
        return new_request(keys, tables, found, step, int(self.look_ups[group]), done, wire)

    def _carry_out(self, kernel: Kernel, group: int, old: OldRows, request: KernelRequest) -> None:
        """Call the kernel `look_up` or `finish_look_up`, and the latter again while the cold log is full."""
        store, table = self.stores[group], self.tables[group]
        table = table if old is NOTHING else table._replace(old=old)
        stopped, refused = -1, 0 if store.cold is None else int(self.counts.of_kernels.refused.sum())
        while True:
            before = stopped
            store.used, stopped = kernel.unchecked(table, request, store.used)
            if store.cold is None:
                return
            if stopped == request.found.unknown[0]:
                break
            assert stopped > before, "the cold log is still full after it was written"
            store.cold.flush()
            kernel, request = look_up.finish_look_up, request._replace(done=np.uint64(stopped))
        if int(self.counts.of_kernels.refused.sum()) > refused:
            raise self._too_small(store)

    # Rows in the cold log

    def _bring_back_all(self, groups: Sequence[tuple[Keys, Tables]], step: int, batch: Hashable | None = None) -> None:
        """Bring the rows of each group's keys back to memory, unless none was evicted since the look-up of `batch`."""
        for number, (keys, tables) in enumerate(groups):
            evictions = self._remembered[number].evictions(batch)
            if evictions is None or self._evicted(number) > evictions:
                self._bring_back(number, keys, tables, step)

    def _bring_back(self, group: int, keys: Keys, tables: Tables, step: int) -> None:
        """Return the rows of keys from the cold log to memory; their steps of last use rise to `step`.

        Raise ConfigError if all rows that they could replace were used in this step or later.
        """
        store, stopped = self.stores[group], -1
        while store.cold is not None and store.cold.rows:
            # A snapshot has the last uses before these.
            old = NOTHING if self._snapshot is None else self._snapshot.before_look_up(group, keys, tables)
            rows = np.empty(keys.size, np.int64)
            index.find_and_touch(store.index, keys, tables, step, rows)
            missing = np.flatnonzero(rows < 0)
            records = store.cold.find(keys[missing], tables[missing])
            if not records.records.size:
                return
            self.look_ups[group] += 1
            positions, before = missing[records.positions], stopped
            taken = FoundRows.only(rows)
            request = self._request(group, keys[positions], tables[positions], step, taken)
            store.used, stopped = look_up.bring_back(
                self.returning[group]._replace(old=old), request, records.records, records.words,
                records.words.view(np.uint32), store.used,
            )  # fmt: skip
            if stopped == look_up.NO_SPACE:
                raise self._too_small(store)
            if stopped == positions.size:
                return
            assert stopped > 0 or before < 0, "the cold log is still full after it was written"
            # The buffer was full. Writing it may move other records, so the rest is searched again.
            store.cold.flush()

    def _too_small(self, store: RowStore) -> ConfigError:
        names = ", ".join(table.name for table in store.group.tables[:3])
        budget = self.layout.budget
        return ConfigError(
            f"{budget} is too small for this batch size: of the {store.capacity:,} rows that this server has in memory "
            f"for tables {names}, too many are in use by the batches in flight; give {budget} a higher value, or "
            "train.batch_size a lower one"
        )

    def _send_cold(self, store: RowStore, keys: Keys, tables: Tables, rows: Rows, out: Halves) -> None:
        """Write the embeddings of keys that are only in the cold log to `out`, and 0 to their `rows`."""
        if store.cold is None or not store.cold.rows:
            return
        missing = np.flatnonzero(rows < 0)
        records = store.cold.find(keys[missing], tables[missing])
        positions, head = missing[records.positions], int(cold.RECORD_HEAD)
        staged = store.rows._replace(arena=records.words[head:], width=np.uint64(head + store.group.width))
        cold.send_records(staged, np.arange(positions.size), positions, CODES[store.group.wire], out)
        rows[positions] = 0

    def values(self, group: int, keys: Keys, tables: Tables) -> Floats:
        """Return embeddings float32[n, dim], decoded from the wire dtype; nothing changes."""
        block = self.look_up(group, keys, tables, 0, create=False)
        return decode_rows(block, self.stores[group].group.dim, self.stores[group].group.wire)

    def update(
        self,
        group: int,
        keys: Keys,
        tables: Tables,
        gradients: Bytes | Floats,
        step: int,
        batch: Hashable | None = None,
        reductions: int = 0,
    ) -> None:
        """Apply the optimizer to the rows of one group's distinct keys, which have passed `check_update`.

        Keys without a row and gradients whose squares are not finite are skipped and counted. Adam corrects its bias
        for update number step + 1, or for the last one of the step if rows get several in each. The rows remembered
        from the batch's look-up are used if they are still right, and dropped. `reductions` is as in `Schedule.at`.
        It is no request, so no process continues it.
        """
        self._update(group, keys, tables, gradients, step, batch, reductions, 0)
        self._mark_group_done(group)

    def _update(
        self,
        group: int,
        keys: Keys,
        tables: Tables,
        gradients: Bytes | Floats,
        step: int,
        batch: Hashable | None,
        reductions: int,
        done: int,
    ) -> None:
        """Update rows as `update`; the first `done` positions are finished and only counted."""
        store = self.stores[group]
        if gradients.dtype == np.uint8:
            gradients = decode_rows(np.ascontiguousarray(gradients), store.group.dim, store.group.wire)
        rows = self._rows_of(group, keys, tables, batch)
        rule = rule_at(store.group.optimizer, step, self.layout.seed, reductions)
        self._change(group, rule, keys, rows, tables, np.ascontiguousarray(gradients).reshape(-1), done)

    def _change(
        self, group: int, rule: Rule, keys: Keys, rows: Rows, tables: Tables, gradients: NDArray[Any], done: int
    ) -> None:
        found = FoundRows.only(rows)
        request = self._request(group, keys, tables, 0, found, done)
        kernel = update.UPDATES[self.stores[group].group.optimizer.kind]
        kernel.unchecked(self.tables[group], request, rule, gradients)

    def insert(
        self,
        group: int,
        keys: Keys,
        tables: Tables,
        last_used: NDArray[np.int64],
        parts: dict[str, Floats],
        frequencies: NDArray[np.uint8] | None = None,
    ) -> int:
        """Add rows of new keys from a checkpoint; return the number of keys that had a row already.

        `parts` are as returned by `RowStore.read_rows`, `frequencies` as in `RowStore.insert`. If there is no space,
        rows are left out and counted. The shard counts as loading until `serve` is called.
        """
        self.check(group, keys, tables, 0)
        self.memory.state = LOADING
        self.stores[group].back(keys.size)
        # Remembered rows of look-ups may belong to other keys after this.
        self._remembered[group].clear()
        evict = self.layout.when_full != "refuse"
        return self.stores[group].insert(keys, tables, last_used, parts, evict, self.counts.loads, frequencies)

    def counters(self) -> dict[str, TableCounters]:
        """Return the counters by table name."""
        return self.counts.by_table()

    def totals(self) -> TableTotals:
        """Return the summed counters of all tables that features read; cheap enough for every look-up."""
        return self.counts.totals()

    def check_update(self, group: int, keys: Keys, tables: Tables, gradients: Bytes | Floats, step: int) -> None:
        """Raise WireError as `check` does, and for gradients that are neither float32[n, dim] nor encoded rows."""
        self.check(group, keys, tables, step)
        dim, wire = self.stores[group].group.dim, self.stores[group].group.wire
        columns = row_bytes(dim, wire) if gradients.dtype == np.uint8 else dim
        if self.stores[group].group.is_frozen and keys.size:
            raise WireError(f"feature group {group} is frozen, but an update has {keys.size} gradients for it")
        if gradients.shape != (keys.size, columns):
            raise WireError(
                f"update of feature group {group} has gradients of shape {gradients.shape}, not {(keys.size, columns)}"
            )

    def check(self, group: int, keys: Keys, tables: Tables, step: int) -> None:
        """Raise WireError for a key or table that does not belong to this server or group, and for an invalid step."""
        if not 0 <= group < len(self.stores):
            raise WireError(f"there is no feature group {group}; this job has {len(self.stores)}")
        if keys.shape != tables.shape or keys.ndim != 1:
            raise WireError(f"feature group {group}: keys have shape {keys.shape}, tables {tables.shape}")
        if not 0 <= step <= MAX_STEP:
            raise WireError(f"step {step} is not between 0 and {MAX_STEP}")
        partitions = self.stores[group].partitions
        bad = index.first_foreign(
            keys, tables, self._members[group], partitions.start, self.layout.groups[group].partitions, len(partitions)
        )
        if bad >= 0:
            raise WireError(
                f"feature group {group}: key {keys[bad]:#018x} of table number {tables[bad]} does not belong to this "
                f"server's partitions {partitions.start} to {partitions.stop - 1} or to this group"
            )

    def _rows_of(self, group: int, keys: Keys, tables: Tables, batch: Hashable | None) -> NDArray[np.int64]:
        """Return the present rows of the keys, int64[n], from the batch's look-up if its rows are still right.

        Updates do not count as uses: the look-up did, except for drawn keys.
        """
        store, look_ups = self.stores[group], int(self.look_ups[group])
        remembered, some_missing = self._remembered[group].take(batch, keys, tables, look_ups)
        if self._snapshot is not None:
            self._snapshot.before_update(group, keys, tables, None if remembered is None else remembered.number)
        if remembered is None:
            rows = np.empty(keys.size, np.int64)
            index.find_and_touch(store.index, keys, tables, 0, rows)  # step 0 raises no step of last use
            return rows
        if some_missing or self._evicted(group) > remembered.evictions:
            age = look_ups - remembered.number
            index.verify(store.index, keys, tables, remembered.number % 256, age, remembered.rows)
        return remembered.rows

    def _evicted(self, group: int) -> int:
        """Return the number of rows of the group evicted so far."""
        return self.counts.evicted(self.layout.groups[group])
