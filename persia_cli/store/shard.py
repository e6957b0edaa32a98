"""The rows of one embedding server: look-up, update, counters."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from persia_cli.errors import ConfigError, WireError
from persia_cli.kernels.rows import hashing
from persia_cli.kernels.rows.optimizers import Rule
from persia_cli.kernels.rows.rows import CODES
from persia_cli.kernels.table import cold, index, look_up, returned, slots, update
from persia_cli.kernels.table.journal import GROUP, NOTE, KernelJournal, private_journal, whole_lines
from persia_cli.kernels.table.look_up import FoundRows
from persia_cli.kernels.table.new_keys import Counts
from persia_cli.kernels.table.old_rows import OldRows
from persia_cli.kernels.table.update import GradientCounts
from persia_cli.kernels.toolchain.compile import Kernel
from persia_cli.kernels.toolchain.memory import Empty, zeros
from persia_cli.store.checkpoints.snapshot import NOTHING, ShardSnapshot
from persia_cli.store.cold.cold_rows import ColdPlace, ColdRows
from persia_cli.store.layout import EmbeddingLayout, partitions_of
from persia_cli.store.memory.answers import Answer, NewKeys
from persia_cli.store.memory.applied_steps import AppliedSteps
from persia_cli.store.memory.progress import BatchRequest
from persia_cli.store.row_rules import row_init, rule_at
from persia_cli.store.row_store import MAX_STEP, Floats, Keys, Memory, RowStore, Tables
from persia_cli.store.table_counters import TableCounters
from persia_cli.store.wire_rows import decode_rows, row_bytes
from persia_cli.wire.message import TableTotals

SOME_MISSING = 1
"""Result of `same_keys` if some keys had no row."""
Bytes = NDArray[np.uint8]
Rows = NDArray[np.int64]
Halves = NDArray[np.uint16]

MAX_REMEMBERED_LOOKUPS = 255
"""Number of a group's look-ups whose rows are remembered for their updates."""
# Between a look-up and the update of its batch, other look-ups may evict some of its rows and give them to other keys.
# Applying a gradient there would change the wrong row. So the index stores for each row the number of the look-up that
# last gave it to another key, in one byte. It is written only at evictions and read only by `index.verify`, so it costs
# look-ups no cache line. A byte repeats after 256 look-ups; up to 255 later, the difference of two numbers still shows
# which came first. Permits (`control.watermarks`) bound the number of batches between the two anyway.


@dataclass(frozen=True)
class RememberedRows:
    """The rows that a look-up found, for the update of the same keys."""

    keys: Keys
    tables: Tables
    rows: NDArray[np.int64]
    number: int
    """Number of the look-up."""
    evictions: int
    """Number of rows of the group that were evicted up to this look-up."""


class Shard:
    """The rows of the partitions that server `server` of `servers` owns, with one row store per feature group.

    `empty` allocates the arrays that look-ups return, `memory` all lasting ones; `ranks` send updates. With
    `cold_place`, rows leave memory for a disk if their group has space there; `begin_cold` must follow.
    """

    def __init__(
        self,
        layout: EmbeddingLayout,
        server: int,
        servers: int,
        empty: Empty = np.empty,
        memory: Memory = zeros,
        ranks: int = 1,
        cold_place: ColdPlace | None = None,
    ) -> None:
        self.layout = layout
        self.applied = AppliedSteps(memory, ranks)
        self._updates: NDArray[np.int64] = memory(1, np.int64)
        self.saves: NDArray[np.int64] = memory(1, np.int64)
        """The number of the last save that a process with this memory has begun; set when one begins."""
        self._empty = empty
        self.salts = layout.salts()
        self.stores = tuple(
            RowStore(
                group, partitions_of(group.partitions, server, servers), memory, cold_place, tables=self.salts.size
            )
            for group in layout.groups
        )
        self._return_words: NDArray[np.uint64] = memory(8, np.uint64)
        self._return_notes: NDArray[np.uint64] = memory(2 * int(NOTE), np.uint64)
        self._return_rows = [
            memory(2 * whole_lines(group.width) if group.cold_bytes else 0, np.float32) for group in layout.groups
        ]
        count = self.salts.size
        self._members = np.zeros((len(layout.groups), count), np.uint8)
        for group in layout.groups:
            self._members[group.number, [table.number for table in group.tables]] = 1
        self._all_counts = memory(len(Counts._fields) * count, np.int64).reshape(len(Counts._fields), count)
        self._counts = Counts(*self._all_counts)
        self._read_by_features = [table.number for group in layout.feature_groups for table in group.tables]
        self._loads = slots.LoadCounts(*memory(2 * count, np.int64).reshape(2, count))
        self._gradients = GradientCounts(*memory(2 * count, np.int64).reshape(2, count))
        self._row_inits = tuple(row_init(layout, group, self.salts) for group in layout.groups)
        self._journals = tuple(private_journal(group.number, group.width) for group in layout.groups)
        self._remembered: tuple[OrderedDict[Hashable, RememberedRows], ...] = tuple(
            OrderedDict() for _ in layout.groups
        )
        self._look_ups: NDArray[np.int64] = memory(len(layout.groups), np.int64)
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

    def begin_snapshot(self, places: int | None = None) -> ShardSnapshot:
        """Begin a snapshot of all present rows, and end the one before; see `persia_cli.store.checkpoints.snapshot`."""
        self.end_snapshot()
        self._snapshot = ShardSnapshot(self.stores, self._look_ups.tolist(), places)
        return self._snapshot

    def end_snapshot(self) -> None:
        """End the snapshot: no more rows are copied for it."""
        if self._snapshot is not None:
            self._snapshot.drop()
        self._snapshot = None

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
        return None

    def serve(self) -> None:
        """Record that all rows are loaded."""

    def answer_all(
        self, groups: Sequence[tuple[Keys, Tables]], step: int, rank: int, batch: Hashable | None
    ) -> list[Answer]:
        """Return the result of `answer` with `create` for each group; mark the rank's step as looked up."""
        self._bring_back_all(groups, step)
        answers = [self.answer(number, *group, step, True, batch) for number, group in enumerate(groups)]
        self.applied.mark_looked_up(rank, step)
        return answers

    def update_all(
        self,
        groups: Sequence[tuple[Keys, Tables, Bytes | Floats]],
        step: int,
        ranks: Sequence[int],
        batch: Hashable | None = None,
        reductions: int = 0,
    ) -> None:
        """Call `update` for each group; mark the step as applied for the ranks."""
        self._bring_back_all([group[:2] for group in groups], step, batch)
        for number, group in enumerate(groups):
            self.update(number, *group, step, batch, reductions)
        for rank in ranks:
            self.applied.mark(rank, step)
        self._updates += 1

    def look_up(
        self, group: int, keys: Keys, tables: Tables, step: int, create: bool, batch: Hashable | None = None
    ) -> Bytes:
        """Return the rows of `answer`, without the positions of new keys; raise WireError as `check` does."""
        self.check(group, keys, tables, step)
        if create:
            self._bring_back(group, keys, tables, step)
        return self.answer(group, keys, tables, step, create, batch)[0]

    def answer(
        self,
        group: int,
        keys: Keys,
        tables: Tables,
        step: int,
        create: bool,
        batch: Hashable | None = None,
    ) -> Answer:
        """Return the embeddings of distinct keys, in the group's wire dtype, and the keys that had no row before.

        Take keys uint64[n] and tables uint16[n]; return embeddings uint8[n, row_bytes], zeros for keys without a row.
        With `create`, unknown keys get a new row if they are admitted and there is space, if necessary by an eviction;
        steps of last use rise to `step`; and the rows are remembered for the update of `batch`. Without `create`,
        nothing changes. The caller has called `check` on the arguments.
        """
        store = self.stores[group]
        block = self._empty((keys.size, row_bytes(store.group.dim, store.group.wire)), np.uint8)
        out = block.reshape(-1).view(np.uint16)
        rows = np.empty(keys.size, np.int64)
        if not create:
            look_up.read_rows(store.index, store.rows, keys, tables, CODES[store.group.wire], rows, out)
            self._send_cold(store, keys, tables, rows, out)
            rowless = np.flatnonzero(rows < 0).astype(np.uint32)
            return block, NewKeys(rowless, rowless)
        old = NOTHING if self._snapshot is None else self._snapshot.before_look_up(group, keys, tables)
        self._look_ups[group] += 1
        new = self._find_or_add(group, old, keys, tables, step, rows, out)
        if batch is not None:
            self._remember(group, batch, keys, tables, rows)
        return block, NewKeys(new, new[rows[new] < 0])

    def _find_or_add(
        self, group: int, old: OldRows, keys: Keys, tables: Tables, step: int, rows: Rows, out: Halves
    ) -> NDArray[np.uint32]:
        """Carry out a look-up that may add rows; return the positions of new keys."""
        found = FoundRows(rows, np.empty(keys.size, np.uint32), out)
        self._carry_out(look_up.look_up, self._journals[group], group, old, keys, tables, step, found)
        return found.new[: int(self._journals[group].unknown[0])]

    def _carry_out(
        self,
        kernel: Kernel,
        journal: KernelJournal,
        group: int,
        old: OldRows,
        keys: Keys,
        tables: Tables,
        step: int,
        found: FoundRows,
    ) -> None:
        """Call the kernel `look_up` or `finish_look_up`, and go on with the latter while the cold log is full."""
        store, refused = self.stores[group], int(self._counts.refused.sum())
        store.used = kernel(journal, *self._look_up_arguments(group, old, keys, tables, step, found))
        while store.cold is not None and (done := store.log.buffer[cold.STOPPED]) < journal.unknown[0]:
            store.cold.flush()
            rest = journal._replace(done=np.uint64(done))
            arguments = self._look_up_arguments(group, old, keys, tables, step, found)
            store.used = look_up.finish_look_up(rest, *arguments)
        if store.cold is not None and int(self._counts.refused.sum()) > refused:
            raise self._too_small(store)

    def _look_up_arguments(
        self, group: int, old: OldRows, keys: Keys, tables: Tables, step: int, found: FoundRows
    ) -> tuple[Any, ...]:
        """Return the arguments of the kernel `look_up` after the journal."""
        store = self.stores[group]
        return (
            store.index, store.rows, old, store.log, self._row_inits[group], self._counts, keys, tables, step,
            self._look_ups[group] % 256, store.used, CODES[store.group.wire], found,
        )  # fmt: skip

    def _change(self, group: int, rule: Rule, keys: Keys, rows: Rows, tables: Tables, gradients: NDArray[Any]) -> None:
        store = self.stores[group]
        update.UPDATES[store.group.optimizer.kind](store.rows, rule, keys, rows, tables, gradients, self._gradients)

    # Rows in the cold log

    def _bring_back_all(self, groups: Sequence[tuple[Keys, Tables]], step: int, batch: Hashable | None = None) -> None:
        """Bring the rows of each group's keys back to memory, unless none was evicted since the look-up of `batch`."""
        for number, (keys, tables) in enumerate(groups):
            found = self._remembered[number].get(batch)
            if found is None or self._evicted(number) > found.evictions:
                self._bring_back(number, keys, tables, step)

    def _bring_back(self, group: int, keys: Keys, tables: Tables, step: int) -> None:
        """Return the rows of keys from the cold log to memory; their steps of last use rise to `step`.

        Raise ConfigError if all rows that they could replace were used in this step or later.
        """
        store = self.stores[group]
        while store.cold is not None and store.cold.rows:
            # A snapshot has the last uses before these.
            old = NOTHING if self._snapshot is None else self._snapshot.before_look_up(group, keys, tables)
            rows = np.empty(keys.size, np.int64)
            index.find_and_touch(store.index, keys, tables, step, rows)
            missing = np.flatnonzero(rows < 0)
            found = store.cold.find(keys[missing], tables[missing])
            if not found.records.size:
                return
            self._look_ups[group] += 1
            places = missing[found.places]
            store.used = returned.bring_back(
                self._return_journal(group), store.index, store.rows, old, store.log, self._row_inits[group],
                self._counts, keys[places], tables[places], found.records, found.words, found.words.view(np.uint32),
                step, self._look_ups[group] % 256, store.used,
            )  # fmt: skip
            stopped = int(store.log.buffer[cold.STOPPED])
            if stopped == returned.NO_SPACE:
                raise self._too_small(store)
            if stopped == places.size:
                return
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

    def _return_journal(self, group: int) -> KernelJournal:
        """Return the journal of rows that return to memory, which is valid between requests too."""
        return KernelJournal(
            words=self._return_words,
            rows=self._return_rows[group],
            notes=self._return_notes,
            unknown=np.zeros(1, np.int64),
            group=np.uint64(group) << GROUP,
            done=np.uint64(0),
        )

    def _send_cold(self, store: RowStore, keys: Keys, tables: Tables, rows: Rows, out: Halves) -> None:
        """Write the embeddings of keys that are only in the cold log to `out`, and 0 to their `rows`."""
        if store.cold is None or not store.cold.rows:
            return
        missing = np.flatnonzero(rows < 0)
        found = store.cold.find(keys[missing], tables[missing])
        places, head = missing[found.places], int(cold.RECORD_HEAD)
        staged = store.rows._replace(arena=found.words[head:], width=np.uint64(head + store.group.width))
        cold.send_records(staged, np.arange(places.size), places, CODES[store.group.wire], out)
        rows[places] = 0

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
        """Apply the optimizer to the rows of distinct keys; the caller has called `check_update` on the arguments.

        Keys without a row and gradients whose squares are not finite are skipped and counted. Adam corrects its bias
        for update number step + 1, or for the last one of the step if rows get several in each. The rows remembered
        from the batch's look-up are used if they are still right, and dropped. `reductions` is as in `Schedule.at`.
        """
        store = self.stores[group]
        if gradients.dtype == np.uint8:
            gradients = decode_rows(np.ascontiguousarray(gradients), store.group.dim, store.group.wire)
        rows = self._rows_of(group, keys, tables, step, batch)
        rule = rule_at(store.group.optimizer, step, self.layout.seed, reductions)
        self._change(group, rule, keys, rows, tables, np.ascontiguousarray(gradients).reshape(-1))

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
        rows are left out and counted.
        """
        self.check(group, keys, tables, 0)
        # Remembered rows of look-ups may belong to other keys after this.
        self._remembered[group].clear()
        evict = self.layout.when_full != "refuse"
        return self.stores[group].insert(keys, tables, last_used, parts, evict, self._loads, frequencies)

    def counters(self) -> dict[str, TableCounters]:
        """Return the counters by table name."""
        return {
            table.name: self._counters(table.number, store) for store in self.stores for table in store.group.tables
        }

    def totals(self) -> TableTotals:
        """Return the summed counters of all tables that features read; cheap enough for every look-up."""
        counts = self._all_counts[:, self._read_by_features].sum(axis=1).tolist()
        hits, admitted, refused, not_admitted, evicted, _, returned = counts
        rows = admitted + int(self._loads.loaded[self._read_by_features].sum()) + returned - evicted
        totals = TableTotals(rows, evicted, hits, admitted + refused + not_admitted)
        logs = [store.cold for store in self.stores if store.cold is not None]
        if not logs:
            return totals
        return structs.replace(
            totals,
            returned=returned,
            cold_loaded=sum(int(log.loaded.sum()) for log in logs),
            dropped=sum(int(log.dropped.sum()) for log in logs),
            cold_reads=sum(int(log.counts.reads[0]) for log in logs),
            cold_waited_us=sum(int(log.counts.waited_us[0]) for log in logs),
            cold_written=sum(int(log.counts.bytes_written[0]) for log in logs),
        )

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

    def _remember(self, group: int, batch: Hashable, keys: Keys, tables: Tables, rows: NDArray[np.int64]) -> None:
        found = self._remembered[group]
        found[batch] = RememberedRows(keys, tables, rows, self._look_ups[group], self._evicted(group))
        if len(found) > MAX_REMEMBERED_LOOKUPS:
            found.popitem(last=False)

    def _rows_of(self, group: int, keys: Keys, tables: Tables, step: int, batch: Hashable | None) -> NDArray[np.int64]:
        """Return the present rows of the keys, int64[n], from the batch's look-up if its rows are still right."""
        store = self.stores[group]
        found = self._remembered[group].pop(batch, None)
        fit = 0
        if found is not None and self._look_ups[group] - found.number <= MAX_REMEMBERED_LOOKUPS:
            fit = index.same_keys(keys, tables, found.keys, found.tables, found.rows)
        if self._snapshot is not None:
            self._snapshot.before_update(group, keys, tables, found.number if found is not None and fit else None)
        if found is not None and fit:
            if fit == SOME_MISSING or self._evicted(group) > found.evictions:
                age = self._look_ups[group] - found.number
                index.verify(store.index, keys, tables, step, found.number % 256, age, found.rows)
            return found.rows
        rows = np.empty(keys.size, np.int64)
        index.find_and_touch(store.index, keys, tables, step, rows)
        return rows

    def _evicted(self, group: int) -> int:
        """Return the number of rows of the group evicted so far."""
        return int(self._counts.evicted[[table.number for table in self.layout.groups[group].tables]].sum())

    def _cold_rows(self, cold_rows: ColdRows) -> Rows:
        """Return the number of rows of each table in a cold log, int64[tables], by the counters."""
        return self._counts.evicted - self._counts.returned - cold_rows.dropped + cold_rows.loaded

    def _counters(self, table: int, store: RowStore) -> TableCounters:
        hits, admitted, refused, not_admitted, evicted, expired, came_back = (
            int(counts[table]) for counts in self._counts
        )
        rows = admitted + int(self._loads.loaded[table]) + came_back - evicted
        cold_rows = dropped = 0
        if store.cold is not None:
            dropped = int(store.cold.dropped[table])
            cold_rows = int(self._cold_rows(store.cold)[table])
        return TableCounters(
            rows=rows,
            bytes=rows * store.group.width * 4,
            hits=hits,
            misses=admitted + refused + not_admitted,
            admitted=admitted,
            refused=refused,
            not_admitted=not_admitted,
            evicted=evicted,
            expired=expired,
            left_out=int(self._loads.left_out[table]),
            gradients_missing=int(self._gradients.missing[table]),
            gradients_refused=int(self._gradients.refused[table]),
            cold_rows=cold_rows,
            returned=came_back,
            dropped=dropped,
        )
