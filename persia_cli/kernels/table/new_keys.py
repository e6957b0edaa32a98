"""New keys: their admission, their initial rows, and the journal's note that gives them a row."""

import numpy as np
from numba import types

from persia_cli.kernels.rows.hashing import mix, unmix
from persia_cli.kernels.rows.rows import LANES, ZERO, begin_row
from persia_cli.kernels.table.arguments import TABLE
from persia_cli.kernels.table.buckets import NOWHERE, partition_of, row_at
from persia_cli.kernels.table.cold import add_to_index, copy_to_log
from persia_cli.kernels.table.frequency import WORDS, count_without_row, is_counted, line_of, word_of
from persia_cli.kernels.table.journal import ENTRY, NONE, WORDS_OF_SLOT, log_slot, note_of
from persia_cli.kernels.table.old_rows import copy_row, must_save
from persia_cli.kernels.table.slots import (
    ALWAYS,
    find_slot,
    is_expired,
    key_at,
    log_room,
    put,
)
from persia_cli.kernels.toolchain.compile import helper, inlined, kernel
from persia_cli.kernels.toolchain.needs import TAKE_OVER
from persia_cli.kernels.toolchain.simd import load, store

U8, U64 = types.uint8, types.uint64
ADMISSION = np.uint64(0xD1B54A32D192ED03)
"""A constant that makes the random draw of admission independent of that of initial values."""


@inlined
def draw(row_init, key, table):
    """Return the 24-bit random number by which an id is admitted or not."""
    salt = row_init.salts[table]
    return mix(mix(mix(row_init.seed) ^ salt) ^ unmix(key) ^ salt ^ ADMISSION) >> np.uint64(40)


@inlined
def initialize_row(rows, row_init, row, key, table):
    """Write the initial values of a key's row."""
    salt = row_init.salts[table]
    begin_row(rows, row, row_init.seed, salt, unmix(key) ^ salt, row_init.bounds[table], row_init.states)


GOT_ROW, NO_SPACE, LEFT_OUT, RETURNED = (np.uint64(i) for i in range(4))
"""Outcomes of a key without a row, in its note; with RETURNED its old row is in `KernelJournal.rows`."""


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
    """Write the note of a new key of table `number`, from word `base` on: row, slots, and each count's new value."""
    note, index, rules, counts = table.journal.notes, table.index, table.rules, table.counts
    _begin_note(note, base, key, number)
    admitted = draw(rules, key, number) < rules.admission[number]
    times = np.uint64(1)
    if admitted and counts_new(table, key, number):
        note[base + ENTRY.line] = line_of(index, key)
        times = count_without_row(index, key, step, note, base + ENTRY.line_words)
    if not admitted or times < rules.min_count[number]:
        note[base + ENTRY.outcome], note[base + ENTRY.counter] = LEFT_OUT, np.uint64(counts.not_admitted[number] + 1)
        return
    # Rows that go to the log are not lost, so a new key need not be more frequent than they are.
    claim = find_slot(index, key, step, rules.eviction, ALWAYS if table.cold.filled.size else times)
    if claim.slot == NOWHERE:
        note[base + ENTRY.outcome], note[base + ENTRY.counter] = NO_SPACE, np.uint64(counts.refused[number] + 1)
        return
    _log_row(table, base, claim, key, step, used)
    note[base + ENTRY.outcome], note[base + ENTRY.counter] = GOT_ROW, np.uint64(counts.admitted[number] + 1)
    note[base + ENTRY.uses] = np.uint64(word_of(times, step))


@helper
def log_returned(table, base, key, number, step, used):
    """Write the note of a key whose row returns to memory; return False if no row last used before `step` is left."""
    note = table.journal.notes
    _begin_note(note, base, key, number)
    claim = find_slot(table.index, key, step, table.rules.eviction, ALWAYS)
    if claim.slot == NOWHERE:
        return False
    _log_row(table, base, claim, key, step, used)
    note[base + ENTRY.outcome] = RETURNED
    note[base + ENTRY.counter] = np.uint64(table.counts.returned[number] + 1)
    return True


@inlined
def _begin_note(note, base, key, number):
    note[base + ENTRY.writes] = np.uint64(0)
    note[base + ENTRY.key], note[base + ENTRY.table] = key, np.uint64(number)
    note[base + ENTRY.row] = note[base + ENTRY.loser] = note[base + ENTRY.line] = note[base + ENTRY.logged] = NONE


@helper
def _log_row(table, base, claim, key, step, used):
    """Log the slot and the row of a key, and what happens to the key that loses it."""
    note, index, counts, cold = table.journal.notes, table.index, table.counts, table.cold
    row, fill, loser = used, index.fill[partition_of(index, key)], claim.loser
    if loser != NOWHERE:
        row = row_at(index, loser)
        number = index.tables[row]
        note[base + ENTRY.loser] = np.uint64(number)
        note[base + ENTRY.evicted] = np.uint64(counts.evicted[number] + 1)
        expired = is_expired(index, loser, step, table.rules.eviction)
        note[base + ENTRY.expired] = np.uint64(counts.expired[number] + np.int64(expired))
        if must_save(table.old, row):
            copy_row(index, table.rows, table.old, loser, row)
        if cold.filled.size:
            note[base + ENTRY.loser_key] = key_at(index, loser)
            copy_to_log(cold, cold.filled[0], index, loser, row, table.rows)
            note[base + ENTRY.logged] = np.uint64(cold.filled[0] + 1)
    else:
        fill += np.int32(1)
    note[base + ENTRY.row], note[base + ENTRY.fill] = np.uint64(row), np.uint64(fill)
    slot = log_room(table.journal, base, index, claim)
    log_slot(table.journal, base, slot, key, np.uint32(row + 1), step)


@helper
def carry_out_note(table, base, look_up):
    """Execute a note; return the row, -1 for none. Executing it again, or after a part of it, changes nothing.

    `look_up` is the number of the present look-up, modulo 256.
    """
    note, index, rows, counts, cold = table.journal.notes, table.index, table.rows, table.counts, table.cold
    for i in range(note[base + ENTRY.writes]):
        at = base + ENTRY.slots + WORDS_OF_SLOT * i
        mark_and_step = note[at + np.uint64(2)]
        put(
            index, note[at], note[at + np.uint64(1)], np.uint32(mark_and_step & np.uint64(2**32 - 1)),
            np.uint32(mark_and_step >> np.uint64(32)),
        )  # fmt: skip
    if note[base + ENTRY.line] != NONE:
        for word in range(WORDS):
            index.sketch[note[base + ENTRY.line] + word] = note[base + ENTRY.line_words + word]
    key, number, row = note[base + ENTRY.key], note[base + ENTRY.table], np.int64(note[base + ENTRY.row])
    count = np.int64(note[base + ENTRY.counter])
    if note[base + ENTRY.outcome] == LEFT_OUT:
        counts.not_admitted[number] = count
        return row
    if note[base + ENTRY.outcome] == NO_SPACE:
        counts.refused[number] = count
        return row
    if note[base + ENTRY.loser] != NONE:
        loser = note[base + ENTRY.loser]
        counts.evicted[loser] = np.int64(note[base + ENTRY.evicted])
        counts.expired[loser] = np.int64(note[base + ENTRY.expired])
        index.reused[row] = look_up
        if note[base + ENTRY.logged] != NONE:
            cold.filled[0] = np.int64(note[base + ENTRY.logged])
            add_to_index(cold, note[base + ENTRY.loser_key], cold.filled[0] - 1)
    index.fill[partition_of(index, key)] = np.int32(note[base + ENTRY.fill])
    index.tables[row] = np.uint16(number)
    if index.uses.size:
        index.uses[row] = np.uint32(note[base + ENTRY.uses])
    if note[base + ENTRY.outcome] == RETURNED:
        counts.returned[number] = count
        content, to = table.journal.rows, np.uint64(row) * rows.width
        at = (np.uint64(content.size) >> np.uint64(1)) * np.uint64(base != ZERO)
        for word in range(ZERO, rows.width, LANES):
            lanes = np.int64(rows.width - word)
            store(rows.arena, to + word, load(content, at + word, lanes), lanes)
    else:
        counts.admitted[number] = count
        initialize_row(rows, table.rules, row, key, number)
    return row


@kernel(types.int64(TABLE, U8, U64), for_=TAKE_OVER)
def carry_out(table, look_up, position):
    """Give a row to the key without one at a position, whose note is valid; return the row, -1 if it gets none."""
    return carry_out_note(table, note_of(position), look_up)
