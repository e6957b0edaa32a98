"""The look-up of a whole batch in one call: find rows, send them, and give rows to ids without one."""

import numpy as np
from numba import types

from persia_cli.kernels.rows.rows import NO_ROW, ROWS, copy_words, prefetch_words, send_row, send_rows
from persia_cli.kernels.table.arguments import REQUEST, TABLE
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
from persia_cli.kernels.table.cold import RECORD_HEAD, USES, is_full, remove_from_index
from persia_cli.kernels.table.frequency import count_use, is_counted, prefetch_line
from persia_cli.kernels.table.journal import ADDING, ENTRY, IDLE, PROGRESS, content_at, entry_at, publish, record_skip
from persia_cli.kernels.table.new_keys import carry_out_entry, counts_new, log_insert, log_returned
from persia_cli.kernels.table.slots import EVICT_LFU, EVICT_LRU, least_used
from persia_cli.kernels.toolchain.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import prefetch
from persia_cli.kernels.toolchain.needs import COLD_ROWS, SERVER, TAKE_OVER, TRAINING

F32, U16, U32, U64, I64 = types.float32, types.uint16, types.uint32, types.uint64, types.int64
FAR, NEAR = np.uint64(16), np.uint64(8)
"""Number of new keys ahead whose candidate buckets, or whose rows to evict, are prefetched."""


RESULT = types.UniTuple(I64, 2)
"""Rows in use, and the position at which the kernel stopped."""
NO_SPACE = -1
"""Position if a row cannot return, because all rows that it could replace are in use."""


@kernel(types.void(INDEX, ROWS, read(U64), read(U16), I64, write(I64), write(U16)), for_=SERVER)
def read_rows(index, rows, keys, tables, wire, numbers, out):
    """Send the row of each (key, table), zeros if it has none; the index is not changed. `numbers` gets the rows."""
    for start in range(np.uint64(0), np.uint64(keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(keys.size))
        seek(index, keys, start, stop)
        for i in range(start, stop):
            slot = confirm_slot(index, keys[i], tables[i], i - start)
            numbers[i] = NO_ROW
            if slot != NOWHERE:
                numbers[i] = row_at(index, slot)
        send_rows(rows, numbers, start, stop, out, wire)


@kernel(RESULT(TABLE, REQUEST, I64), for_=TRAINING)
def look_up(table, request, used):
    """Send the row of each (key, table) and give rows to new keys; return the rows in use, and where it stopped.

    `used` is the number of rows in use before. Rows of a snapshot that new keys evict are copied to `table.old`, which
    has space for them. The journal has how each new key gets its row. The second value is the number of new keys, or
    the position of the first for which the buffer of the cold log had no space: `finish_look_up` does the rest.
    """
    # First all known keys are served and their steps of last use raised to `step`, then new keys get rows. So no new
    # key evicts a row that this batch uses.
    request.found.unknown[0] = _serve_known(table, request)
    publish(table.journal.words, PROGRESS, IDLE | ADDING | table.journal.group)
    return _add_rows(table, request, used)


@kernel(RESULT(TABLE, REQUEST, I64), for_=(TAKE_OVER, COLD_ROWS))
def finish_look_up(table, request, used):
    """Give rows to the new keys of a look-up that was interrupted, from the one at `request.done` on; as `look_up`."""
    return _add_rows(table, request, used)


@helper
def _serve_known(table, request):
    """Send the rows of known keys, zeros for others; return the number of others, whose positions are `found.new`."""
    # Look-ups of rows are counted only in partitions that are nearly full: no other partition evicts rows soon.
    index, found, capacity = table.index, request.found, table.rules.eviction.capacity
    counting = index.uses.size > 0 and is_counted(_fullest(index), capacity)
    unknown = np.uint64(0)
    for start in range(np.uint64(0), np.uint64(request.keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(request.keys.size))
        seek(index, request.keys, start, stop)
        for i in range(start, stop):
            slot = confirm_slot(index, request.keys[i], request.tables[i], i - start)
            if slot == NOWHERE:
                found.rows[i] = NO_ROW
                found.new[unknown] = np.uint32(i)
                unknown += np.uint64(1)
            else:
                found.rows[i] = row_at(index, slot)
                touch(index, slot, request.step)
                if counting:
                    prefetch(index.uses, np.uint64(found.rows[i]))
                table.counts.hits[request.tables[i]] += 1
        send_rows(table.rows, found.rows, start, stop, found.out, request.wire)
        # Counted after the rows were sent: by then the prefetched counts have arrived from memory.
        if counting:
            _count_uses(index, capacity, request.keys, request.step, found.rows, start, stop)
    return unknown


@helper
def _fullest(index):
    """Return the number of rows of the fullest partition."""
    most = np.int64(0)
    for partition in range(index.fill.size):
        most = max(most, np.int64(index.fill[partition]))
    return most


@helper
def _count_uses(index, capacity, keys, step, rows, start, stop):
    """Count the look-ups of rows found[start:stop] (-1 for none), of partitions that are nearly full."""
    for i in range(start, stop):
        if rows[i] >= 0 and is_counted(index.fill[partition_of(index, keys[i])], capacity):
            count_use(index, rows[i], step)


@helper
def _add_rows(table, request, used):
    """Give rows to the new keys from `request.done` on and send them; return as `look_up`."""
    found, step, unknown = request.found, request.step, np.uint64(request.found.unknown[0])
    for m in range(request.done, unknown):
        if is_full(table.cold):
            record_skip(table.journal, m - np.uint64(1), ADDING)
            return used, np.int64(m)
        if m + FAR < unknown:
            ahead = np.uint64(found.new[m + FAR])
            _prefetch_candidates(table, request.keys[ahead], request.tables[ahead])
        if m + NEAR < unknown:
            key = request.keys[np.uint64(found.new[m + NEAR])]
            _prefetch_victim(table.index, table.rows, key, step, table.rules.eviction)
        at = np.uint64(found.new[m])
        row = _admit(table, request.keys[at], request.tables[at], step, request.number, used, m)
        found.rows[at] = row
        if row >= 0:
            used = max(used, row + 1)
            send_row(table.rows, row, found.out, at, request.wire)
    return used, np.int64(unknown)


@inlined
def _prefetch_candidates(table, key, number):
    one = first_bucket(table.index, key)
    prefetch(table.index.buckets, one * KEYS)
    prefetch(table.index.buckets, second_bucket(table.index, key, one) * KEYS)
    if counts_new(table, key, number):
        prefetch_line(table.index, key)


@inlined
def _prefetch_victim(index, rows, key, step, rules):
    """Prefetch the row that a new key will most likely take from another key, or the counts that decide on that."""
    if index.fill[partition_of(index, key)] >= rules.capacity:
        one = first_bucket(index, key)
        two = second_bucket(index, key, one)
        if rules.policy == EVICT_LFU:
            for bucket in (one, two):
                for slot in range(bucket * np.uint64(SLOTS), (bucket + np.uint64(1)) * np.uint64(SLOTS)):
                    prefetch(index.uses, np.uint64(max(np.int64(0), row_at(index, slot))))
            return
        slot = least_used(index, one, two, step, rules)
        if slot != NOWHERE and rules.policy == EVICT_LRU:
            row = row_at(index, slot)
            prefetch(index.tables, np.uint64(row))
            prefetch(index.reused, np.uint64(row))
            prefetch_words(rows, row, rows.width)


@helper
def _admit(table, key, number, step, look_up, used, position):
    """Give a new key of table `number` a row, and log all changes first; return the row, -1 if it gets none.

    `position` is that of the key among the new ones, `look_up` the number of the look-up.
    """
    slot = slot_of(table.index, key, number, first_bucket(table.index, key))
    if slot != NOWHERE:
        record_skip(table.journal, position, ADDING)
        return row_at(table.index, slot)
    base = entry_at(position)
    log_insert(table, base, key, number, step, used)
    publish(table.journal.words, PROGRESS, ADDING | table.journal.group | position)
    return carry_out_entry(table, base, look_up)


# Rows that return from the cold log to memory before a request uses them


@kernel(RESULT(TABLE, REQUEST, read(I64), read(F32), read(U32), I64), for_=COLD_ROWS)
def bring_back(table, request, records, words, marks, used):
    """Give rows in memory to keys, with the content of their records; return the rows in use, and where it stopped.

    `words` and `marks` are the records one after the other. Rows last used before `step` may be evicted, and steps of
    last use become `step`. The second value is the position at which the buffer was full, the number of keys, or
    NO_SPACE. The entries of the journal are as those of a look-up; a repeat after a kill brings back the rest.
    """
    index, rows, cold, journal, step = table.index, table.rows, table.cold, table.journal, request.step
    size = RECORD_HEAD + rows.width
    for i in range(np.uint64(request.keys.size)):
        if is_full(cold):
            record_skip(journal, i - np.uint64(1), ADDING)
            return used, np.int64(i)
        key, number = request.keys[i], request.tables[i]
        slot = slot_of(index, key, number, first_bucket(index, key))
        if slot != NOWHERE:
            touch(index, slot, step)
            record_skip(journal, i, ADDING)
            continue
        base = entry_at(i)
        copy_words(words, i * size + RECORD_HEAD, journal.rows, content_at(journal, base), rows.width)
        if not log_returned(table, base, key, number, step, used):
            record_skip(journal, i - np.uint64(1), ADDING)
            return used, np.int64(NO_SPACE)
        journal.entries[base + ENTRY.uses] = np.uint64(marks[i * size + USES])
        publish(journal.words, PROGRESS, ADDING | journal.group | i)
        row = carry_out_entry(table, base, request.number)
        used = max(used, row + 1)
        remove_from_index(cold, key, np.uint64(records[i]))
    record_skip(journal, np.uint64(request.keys.size) - np.uint64(1), ADDING)
    return used, np.int64(request.keys.size)
