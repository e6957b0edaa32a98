"""The look-up of a whole batch in one call: find rows, send them, and give rows to ids without one."""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.rows.rows import NO_ROW, ROWS, prefetch_words, send_row, send_rows
from persia_cli.kernels.table.buckets import (
    CHUNK,
    INDEX,
    KEYS,
    NOWHERE,
    SLOTS,
    confirm_slot,
    first_bucket,
    partition_of,
    row_at,
    second_bucket,
    seek,
    slot_of,
    touch,
)
from persia_cli.kernels.table.cold import COLD, STOPPED, is_full
from persia_cli.kernels.table.frequency import count_use, is_counted, prefetch_line
from persia_cli.kernels.table.journal import ADDING, IDLE, JOURNAL, PROGRESS, note_of, publish, record_skip
from persia_cli.kernels.table.new_keys import COUNTS, ROW_INIT, carry_out_note, counts_new, log_insert
from persia_cli.kernels.table.old_rows import OLD_ROWS
from persia_cli.kernels.table.slots import EVICT_LFU, EVICT_LRU, least_used
from persia_cli.kernels.toolchain.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import prefetch
from persia_cli.kernels.toolchain.needs import COLD_ROWS, SERVER, TAKE_OVER, TRAINING

F32, U16, U32, U64, I64, U8 = types.float32, types.uint16, types.uint32, types.uint64, types.int64, types.uint8
FAR, NEAR = np.uint64(16), np.uint64(8)
"""Number of new keys ahead whose candidate buckets, or whose rows to evict, are prefetched."""


class FoundRows(NamedTuple):
    """The results of a look-up."""

    rows: NDArray[np.int64]
    """int64[keys]: the row of each key, -1 for none."""
    new: NDArray[np.uint32]
    """uint32[keys], of which the first are used: positions of the keys that had no row before."""
    out: NDArray[np.uint16]
    """uint16[keys * words of a row on the wire]: embeddings, zeros for keys without a row."""


FOUND_ROWS = types.NamedTuple((write(I64), write(U32), write(U16)), FoundRows)


@kernel(types.void(INDEX, ROWS, read(U64), read(U16), I64, write(I64), write(U16)), for_=SERVER)
def read_rows(index, rows, keys, tables, wire, found, out):
    """Send the row of each (key, table), zeros if it has none; the index is not changed. `found` gets the rows."""
    for start in range(np.uint64(0), np.uint64(keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(keys.size))
        seek(index, keys, start, stop)
        for i in range(start, stop):
            slot = confirm_slot(index, keys[i], tables[i], i - start)
            found[i] = NO_ROW
            if slot != NOWHERE:
                found[i] = row_at(index, slot)
        send_rows(rows, found, start, stop, out, wire)


ARGUMENTS = (
    JOURNAL,
    INDEX,
    ROWS,
    OLD_ROWS,
    COLD,
    ROW_INIT,
    COUNTS,
    read(U64),
    read(U16),
    U32,
    U8,
    I64,
    I64,
    FOUND_ROWS,
)


@kernel(types.int64(*ARGUMENTS), for_=TRAINING)
def look_up(journal, index, rows, old, cold, row_init, counts, keys, tables, step, number, used, wire, found):
    """Send the row of each (key, table) and give rows to new keys; return the new number of rows in use.

    `used` is the number of rows in use before, `number` that of this look-up modulo 256. Rows of a snapshot that new
    keys evict are copied to `old`, which has space for them. The journal notes how each new key gets its row, and its
    `unknown` gets their number.
    """
    # First all known keys are served and their steps of last use raised to `step`, then new keys get rows. So no new
    # key evicts a row that this batch uses.
    unknown = _serve_known(index, rows, row_init.eviction, counts, keys, tables, step, wire, found)
    journal.unknown[0] = unknown
    publish(journal.words, PROGRESS, IDLE | ADDING | journal.group)
    return _add_rows(
        journal, index, rows, old, cold, row_init, counts, keys, tables, step, number, used, wire, found, np.uint64(0),
        unknown,
    )  # fmt: skip


@kernel(types.int64(*ARGUMENTS), for_=(TAKE_OVER, COLD_ROWS))
def finish_look_up(journal, index, rows, old, cold, row_init, counts, keys, tables, step, number, used, wire, found):
    """Give rows to the new keys of a look-up that was interrupted, from the one at `journal.done` on."""
    return _add_rows(
        journal, index, rows, old, cold, row_init, counts, keys, tables, step, number, used, wire, found, journal.done,
        np.uint64(journal.unknown[0]),
    )  # fmt: skip


@helper
def _serve_known(index, rows, rules, counts, keys, tables, step, wire, found):
    """Send the rows of known keys, zeros for others; return the number of others, whose positions are `found.new`."""
    # Look-ups of rows are counted only in partitions that are nearly full: no other partition evicts rows soon.
    counting = index.uses.size > 0 and is_counted(_fullest(index), rules.capacity)
    unknown = np.uint64(0)
    for start in range(np.uint64(0), np.uint64(keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(keys.size))
        seek(index, keys, start, stop)
        for i in range(start, stop):
            slot = confirm_slot(index, keys[i], tables[i], i - start)
            if slot == NOWHERE:
                found.rows[i] = NO_ROW
                found.new[unknown] = np.uint32(i)
                unknown += np.uint64(1)
            else:
                found.rows[i] = row_at(index, slot)
                touch(index, slot, step)
                if counting:
                    prefetch(index.uses, np.uint64(found.rows[i]))
                counts.hits[tables[i]] += 1
        send_rows(rows, found.rows, start, stop, found.out, wire)
        # Counted after the rows were sent: by then the prefetched counts have arrived from memory.
        if counting:
            _count_uses(index, rules.capacity, keys, step, found.rows, start, stop)
    return unknown


@helper
def _fullest(index):
    """Return the number of rows of the fullest partition."""
    most = np.int64(0)
    for partition in range(index.fill.size):
        most = max(most, np.int64(index.fill[partition]))
    return most


@helper
def _count_uses(index, capacity, keys, step, found, start, stop):
    """Count the look-ups of rows found[start:stop] (-1 for none), of partitions that are nearly full."""
    for i in range(start, stop):
        if found[i] >= 0 and is_counted(index.fill[partition_of(index, keys[i])], capacity):
            count_use(index, found[i], step)


@helper
def _add_rows(
    journal, index, rows, old, cold, row_init, counts, keys, tables, step, number, used, wire, found, first, unknown
):  # fmt: skip
    """Give rows to the new keys found.new[first:unknown] and send them; returns the new number of rows in use."""
    for m in range(first, unknown):
        if is_full(cold):
            cold.buffer[STOPPED] = m
            record_skip(journal, m - np.uint64(1), ADDING)
            return used
        if m + FAR < unknown:
            ahead = np.uint64(found.new[m + FAR])
            _prefetch_candidates(index, keys[ahead], tables[ahead], row_init)
        if m + NEAR < unknown:
            _prefetch_victim(index, rows, keys[np.uint64(found.new[m + NEAR])], step, row_init.eviction)
        at = np.uint64(found.new[m])
        row = _admit(journal, index, rows, old, cold, row_init, counts, keys[at], tables[at], step, number, used, m)
        found.rows[at] = row
        if row >= 0:
            used = max(used, row + 1)
            send_row(rows, row, found.out, at, wire)
    if cold.filled.size:
        cold.buffer[STOPPED] = unknown
    return used


@inlined
def _prefetch_candidates(index, key, table, row_init):
    one = first_bucket(index, key)
    prefetch(index.buckets, one * KEYS)
    prefetch(index.buckets, second_bucket(index, key, one) * KEYS)
    if counts_new(index, key, table, row_init):
        prefetch_line(index, key)


@inlined
def _prefetch_victim(index, rows, key, step, rules):
    """Prefetch the row that a new key will most likely take from another key, or the counts that decide on that."""
    if index.fill[partition_of(index, key)] >= rules.capacity:
        one = first_bucket(index, key)
        two = second_bucket(index, key, one)
        if rules.policy == EVICT_LFU:
            for bucket in (one, two):
                for place in range(np.uint64(SLOTS)):
                    prefetch(index.uses, np.uint64(max(np.int64(0), row_at(index, bucket * np.uint64(SLOTS) + place))))
            return
        slot = least_used(index, one, two, step, rules)
        if slot != NOWHERE and rules.policy == EVICT_LRU:
            row = row_at(index, slot)
            prefetch(index.tables, np.uint64(row))
            prefetch(index.reused, np.uint64(row))
            prefetch_words(rows, row, rows.width)


@helper
def _admit(journal, index, rows, old, cold, row_init, counts, key, table, step, number, used, position):
    """Give a new key a row, and note all changes first; return the row, -1 if it gets none.

    `position` is that of the key among the new ones.
    """
    slot = slot_of(index, key, table, first_bucket(index, key))
    if slot != NOWHERE:
        record_skip(journal, position, ADDING)
        return row_at(index, slot)
    base = note_of(position)
    log_insert(journal, base, index, rows, old, cold, row_init, counts, key, table, step, used)
    publish(journal.words, PROGRESS, ADDING | journal.group | position)
    return carry_out_note(journal, base, index, rows, cold, row_init, counts, number)
