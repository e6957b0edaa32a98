"""New keys: their admission, their initial rows, and the journal's entry that gives them a row."""

import numpy as np
from numba import types

from persia_cli.kernels.rows.hashing import mix, unmix
from persia_cli.kernels.rows.rows import begin_row, copy_words
from persia_cli.kernels.table.arguments import TABLE
from persia_cli.kernels.table.buckets import NOWHERE, partition_of, row_at
from persia_cli.kernels.table.cold import add_to_index, copy_to_log
from persia_cli.kernels.table.frequency import WORDS, count_without_row, is_counted, line_of, word_of
from persia_cli.kernels.table.journal import ENTRY, NONE, content_at, entry_at, log_slot
from persia_cli.kernels.table.old_rows import copy_row, must_save
from persia_cli.kernels.table.slots import (
    ALWAYS,
    find_slot,
    is_expired,
    key_at,
    log_room,
    write_slots,
)
from persia_cli.kernels.toolchain.compile import helper, inlined, kernel
from persia_cli.kernels.toolchain.needs import TAKE_OVER

U8, U64 = types.uint8, types.uint64
ADMISSION = np.uint64(0xD1B54A32D192ED03)
"""A constant that makes the random draw of admission independent of that of initial values."""


@inlined
def draw(seed, salt, id_):
    """Return the 24-bit random number by which an id of the table of a salt is admitted or not."""
    return mix(mix(mix(seed) ^ salt) ^ id_ ^ ADMISSION) >> np.uint64(40)


GOT_ROW, NO_SPACE, LEFT_OUT, RETURNED = (np.uint64(i) for i in range(4))
"""Outcomes of a key without a row, in its entry; with RETURNED its old row is in `KernelJournal.rows`."""


@inlined
def counts_new(table, key, number):
    """Return whether to count the look-up of a key without a row: if its admission or that of others depends on it."""
    # If a partition has space, the key gets a row for any count.
    index, rules = table.index, table.rules
    if not index.sketch.size:
        return False
    return rules.min_count[number] > 1 or is_counted(index.fill[partition_of(index, key)], rules.eviction.capacity)


@helper
def log_insert(table, base, key, number, step, used):
    """Write the entry of a new key of table `number`, from word `base` on: row, slots, and each count's new value."""
    entries, index, rules, counts = table.journal.entries, table.index, table.rules, table.counts
    _begin_entry(entries, base, key, number)
    salt = rules.salts[number]
    admitted = draw(rules.seed, salt, unmix(key) ^ salt) < rules.admission[number]
    times = np.uint64(1)
    if admitted and counts_new(table, key, number):
        entries[base + ENTRY.line] = line_of(index, key)
        times = count_without_row(index, key, step, entries, base + ENTRY.line_words)
    if not admitted or times < rules.min_count[number]:
        _end_entry(entries, base, LEFT_OUT, counts.not_admitted[number])
        return
    # Rows that go to the log are not lost, so a new key need not be more frequent than they are.
    claim = find_slot(index, key, step, rules.eviction, ALWAYS if table.cold.filled.size else times)
    if claim.slot == NOWHERE:
        _end_entry(entries, base, NO_SPACE, counts.refused[number])
        return
    _log_row(table, base, claim, key, step, used)
    _end_entry(entries, base, GOT_ROW, counts.admitted[number])
    entries[base + ENTRY.uses] = np.uint64(word_of(times, step))


@helper
def log_returned(table, base, key, number, step, used):
    """Write the entry of a key whose row returns to memory; return False if no row last used before `step` is left."""
    entries = table.journal.entries
    _begin_entry(entries, base, key, number)
    claim = find_slot(table.index, key, step, table.rules.eviction, ALWAYS)
    if claim.slot == NOWHERE:
        return False
    _log_row(table, base, claim, key, step, used)
    _end_entry(entries, base, RETURNED, table.counts.returned[number])
    return True


@inlined
def _begin_entry(entries, base, key, number):
    entries[base + ENTRY.writes] = np.uint64(0)
    entries[base + ENTRY.key], entries[base + ENTRY.table] = key, np.uint64(number)
    for part in (ENTRY.row, ENTRY.loser, ENTRY.line, ENTRY.logged):
        entries[base + part] = NONE


@inlined
def _end_entry(entries, base, outcome, count):
    """Log the outcome, and that its counter rises from `count` by 1."""
    entries[base + ENTRY.outcome], entries[base + ENTRY.counter] = outcome, np.uint64(count + 1)


@helper
def _log_row(table, base, claim, key, step, used):
    """Log the slot and the row of a key, and what happens to the key that loses it."""
    entries, index, counts, cold = table.journal.entries, table.index, table.counts, table.cold
    row, fill, loser = used, index.fill[partition_of(index, key)], claim.loser
    if loser != NOWHERE:
        row = row_at(index, loser)
        number = index.tables[row]
        _record_left(index, key_at(index, loser), number)
        entries[base + ENTRY.loser] = np.uint64(number)
        entries[base + ENTRY.evicted] = np.uint64(counts.evicted[number] + 1)
        expired = is_expired(index, loser, step, table.rules.eviction)
        entries[base + ENTRY.expired] = np.uint64(counts.expired[number] + np.int64(expired))
        if must_save(table.old, row):
            copy_row(index, table.rows, table.old, loser, row)
        if cold.filled.size:
            entries[base + ENTRY.loser_key] = key_at(index, loser)
            copy_to_log(cold, cold.filled[0], index, loser, row, table.rows)
            entries[base + ENTRY.logged] = np.uint64(cold.filled[0] + 1)
    else:
        fill += np.int32(1)
    entries[base + ENTRY.row], entries[base + ENTRY.fill] = np.uint64(row), np.uint64(fill)
    slot = log_room(entries, base, index, claim)
    log_slot(entries, base, slot, key, np.uint32(row + 1), step)


@inlined
def _record_left(index, key, number):
    """Record a key that leaves memory, before it does: after a kill it may be still there, or recorded twice."""
    if index.left.size:
        at = np.uint64(1) + np.uint64(2) * index.left[0]
        if at + np.uint64(1) < np.uint64(index.left.size):
            index.left[at], index.left[at + np.uint64(1)] = key, np.uint64(number)
        index.left[0] += np.uint64(1)


@helper
def carry_out_entry(table, base, look_up):
    """Execute an entry; return the row, -1 for none. Executing it again, or after a part of it, changes nothing.

    `look_up` is the number of the present look-up, modulo 256.
    """
    entries, index, rows, counts, cold = table.journal.entries, table.index, table.rows, table.counts, table.cold
    write_slots(index, entries, base)
    if entries[base + ENTRY.line] != NONE:
        for word in range(WORDS):
            index.sketch[entries[base + ENTRY.line] + word] = entries[base + ENTRY.line_words + word]
    key, number, row = entries[base + ENTRY.key], entries[base + ENTRY.table], np.int64(entries[base + ENTRY.row])
    count = np.int64(entries[base + ENTRY.counter])
    if entries[base + ENTRY.outcome] == LEFT_OUT:
        counts.not_admitted[number] = count
        return row
    if entries[base + ENTRY.outcome] == NO_SPACE:
        counts.refused[number] = count
        return row
    if entries[base + ENTRY.loser] != NONE:
        loser = entries[base + ENTRY.loser]
        counts.evicted[loser] = np.int64(entries[base + ENTRY.evicted])
        counts.expired[loser] = np.int64(entries[base + ENTRY.expired])
        index.reused[row] = look_up
        if entries[base + ENTRY.logged] != NONE:
            cold.filled[0] = np.int64(entries[base + ENTRY.logged])
            add_to_index(cold, entries[base + ENTRY.loser_key], cold.filled[0] - 1)
    index.fill[partition_of(index, key)] = np.int32(entries[base + ENTRY.fill])
    index.tables[row] = np.uint16(number)
    if index.uses.size:
        index.uses[row] = np.uint32(entries[base + ENTRY.uses])
    if entries[base + ENTRY.outcome] == RETURNED:
        counts.returned[number] = count
        at = content_at(table.journal, base)
        copy_words(table.journal.rows, at, rows.arena, np.uint64(row) * rows.width, rows.width)
    else:
        counts.admitted[number] = count
        rules, salt = table.rules, table.rules.salts[number]
        begin_row(rows, row, rules.seed, salt, unmix(key) ^ salt, rules.bounds[number], rules.states)
    return row


@kernel(types.int64(TABLE, U8, U64), for_=TAKE_OVER)
def carry_out(table, look_up, position):
    """Give a row to the key without one at a position, whose entry is valid; return the row, -1 if it gets none."""
    return carry_out_entry(table, entry_at(position), look_up)
