"""New keys: their admission, their initial rows, and the journal's note that gives them a row."""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.rows.hashing import mix, unmix
from persia_cli.kernels.rows.rows import LANES, ROWS, ZERO, begin_row
from persia_cli.kernels.table.buckets import INDEX, NOWHERE, partition_of, row_at
from persia_cli.kernels.table.cold import COLD, add_to_index, copy_to_log
from persia_cli.kernels.table.frequency import WORDS, count_without_row, is_counted, line_of, word_of
from persia_cli.kernels.table.journal import ENTRY, JOURNAL, NONE, WORDS_OF_SLOT, log_slot, note_of
from persia_cli.kernels.table.old_rows import copy_row, must_save
from persia_cli.kernels.table.slots import (
    ALWAYS,
    EVICTION_RULES,
    EvictionRules,
    find_slot,
    is_expired,
    key_at,
    log_room,
    put,
)
from persia_cli.kernels.toolchain.compile import helper, inlined, kernel, write
from persia_cli.kernels.toolchain.needs import TAKE_OVER
from persia_cli.kernels.toolchain.simd import load, store

F32, U64, I64, U8 = types.float32, types.uint64, types.int64, types.uint8
ADMISSION = np.uint64(0xD1B54A32D192ED03)
"""A constant that makes the random draw of admission independent of that of initial values."""


class RowInit(NamedTuple):
    """The rules by which new rows are admitted, placed and initialized."""

    seed: np.uint64
    salts: NDArray[np.uint64]
    """uint64[tables]: salt of each table; the next arrays up to `min_count` are indexed by table number too."""
    bounds: NDArray[np.float32]
    """Initial values lie in [-bound, bound)."""
    admission: NDArray[np.uint64]
    """An id gets a row if its 24-bit random draw is below this value."""
    min_count: NDArray[np.uint64]
    """An id gets a row at the look-up of this number; 0 and 1 mean the first."""
    states: NDArray[np.float32]
    """float32[width - state_at]: initial values of the optimizer's states."""
    eviction: EvictionRules


ROW_INIT = types.NamedTuple((U64, write(U64), write(F32), write(U64), write(U64), write(F32), EVICTION_RULES), RowInit)


class Counts(NamedTuple):
    """Counts of the outcomes of training look-ups; each is int64[tables], by table number."""

    hits: NDArray[np.int64]
    admitted: NDArray[np.int64]
    refused: NDArray[np.int64]
    not_admitted: NDArray[np.int64]
    evicted: NDArray[np.int64]
    expired: NDArray[np.int64]
    """Those of the evicted rows that had expired."""
    returned: NDArray[np.int64]
    """Rows that returned from the cold log to memory."""


COUNTS = types.NamedUniTuple(write(I64), 7, Counts)


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
def counts_new(index, key, table, row_init):
    """Return whether to count the look-up of a key without a row: if its admission or that of others depends on it."""
    # If a partition has space, the key gets a row for any count.
    if not index.sketch.size:
        return False
    return row_init.min_count[table] > 1 or is_counted(index.fill[partition_of(index, key)], row_init.eviction.capacity)


@helper
def log_insert(journal, base, index, rows, old, cold, row_init, counts, key, table, step, used):
    """Write the note of a new key, from word `base` on: its row and slots, and each count's new value."""
    note = journal.notes
    _begin_note(note, base, key, table)
    admitted = draw(row_init, key, table) < row_init.admission[table]
    times = np.uint64(1)
    if admitted and counts_new(index, key, table, row_init):
        note[base + ENTRY.line] = line_of(index, key)
        times = count_without_row(index, key, step, note, base + ENTRY.line_words)
    if not admitted or times < row_init.min_count[table]:
        note[base + ENTRY.outcome], note[base + ENTRY.counter] = LEFT_OUT, np.uint64(counts.not_admitted[table] + 1)
        return
    # Rows that go to the log are not lost, so a new key need not be more frequent than they are.
    claim = find_slot(index, key, step, row_init.eviction, ALWAYS if cold.filled.size else times)
    if claim.slot == NOWHERE:
        note[base + ENTRY.outcome], note[base + ENTRY.counter] = NO_SPACE, np.uint64(counts.refused[table] + 1)
        return
    _log_row(journal, base, index, rows, old, cold, row_init.eviction, counts, claim, key, step, used)
    note[base + ENTRY.outcome], note[base + ENTRY.counter] = GOT_ROW, np.uint64(counts.admitted[table] + 1)
    note[base + ENTRY.uses] = np.uint64(word_of(times, step))


@helper
def log_returned(journal, base, index, rows, old, cold, rules, counts, key, table, step, used):
    """Write the note of a key whose row returns to memory; return False if no row last used before `step` is left."""
    note = journal.notes
    _begin_note(note, base, key, table)
    claim = find_slot(index, key, step, rules, ALWAYS)
    if claim.slot == NOWHERE:
        return False
    _log_row(journal, base, index, rows, old, cold, rules, counts, claim, key, step, used)
    note[base + ENTRY.outcome], note[base + ENTRY.counter] = RETURNED, np.uint64(counts.returned[table] + 1)
    return True


@inlined
def _begin_note(note, base, key, table):
    note[base + ENTRY.writes] = np.uint64(0)
    note[base + ENTRY.key], note[base + ENTRY.table] = key, np.uint64(table)
    note[base + ENTRY.row] = note[base + ENTRY.loser] = note[base + ENTRY.line] = note[base + ENTRY.logged] = NONE


@helper
def _log_row(journal, base, index, rows, old, cold, rules, counts, claim, key, step, used):
    """Note the slot and the row of a key, and what happens to the key that loses it."""
    note = journal.notes
    row, fill, loser = used, index.fill[partition_of(index, key)], claim.loser
    if loser != NOWHERE:
        row = row_at(index, loser)
        note[base + ENTRY.loser] = np.uint64(index.tables[row])
        note[base + ENTRY.evicted] = np.uint64(counts.evicted[index.tables[row]] + 1)
        expired = is_expired(index, loser, step, rules)
        note[base + ENTRY.expired] = np.uint64(counts.expired[index.tables[row]] + np.int64(expired))
        if must_save(old, row):
            copy_row(index, rows, old, loser, row)
        if cold.filled.size:
            note[base + ENTRY.loser_key] = key_at(index, loser)
            copy_to_log(cold, cold.filled[0], index, loser, row, rows)
            note[base + ENTRY.logged] = np.uint64(cold.filled[0] + 1)
    else:
        fill += np.int32(1)
    note[base + ENTRY.row], note[base + ENTRY.fill] = np.uint64(row), np.uint64(fill)
    log_slot(journal, base, log_room(journal, base, index, claim), key, np.uint32(row + 1), step)


@helper
def carry_out_note(journal, base, index, rows, cold, row_init, counts, number):
    """Execute a note; return the row, -1 for none. Executing it again, or after a part of it, changes nothing."""
    note = journal.notes
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
    key, table, row = note[base + ENTRY.key], note[base + ENTRY.table], np.int64(note[base + ENTRY.row])
    count = np.int64(note[base + ENTRY.counter])
    if note[base + ENTRY.outcome] == LEFT_OUT:
        counts.not_admitted[table] = count
        return row
    if note[base + ENTRY.outcome] == NO_SPACE:
        counts.refused[table] = count
        return row
    if note[base + ENTRY.loser] != NONE:
        loser = note[base + ENTRY.loser]
        counts.evicted[loser] = np.int64(note[base + ENTRY.evicted])
        counts.expired[loser] = np.int64(note[base + ENTRY.expired])
        index.reused[row] = number
        if note[base + ENTRY.logged] != NONE:
            cold.filled[0] = np.int64(note[base + ENTRY.logged])
            add_to_index(cold, note[base + ENTRY.loser_key], cold.filled[0] - 1)
    index.fill[partition_of(index, key)] = np.int32(note[base + ENTRY.fill])
    index.tables[row] = np.uint16(table)
    if index.uses.size:
        index.uses[row] = np.uint32(note[base + ENTRY.uses])
    if note[base + ENTRY.outcome] == RETURNED:
        counts.returned[table] = count
        at, to = (np.uint64(journal.rows.size) >> np.uint64(1)) * np.uint64(base != ZERO), np.uint64(row) * rows.width
        for word in range(ZERO, rows.width, LANES):
            lanes = np.int64(rows.width - word)
            store(rows.arena, to + word, load(journal.rows, at + word, lanes), lanes)
    else:
        counts.admitted[table] = count
        initialize_row(rows, row_init, row, key, table)
    return row


@kernel(types.int64(JOURNAL, INDEX, ROWS, COLD, ROW_INIT, COUNTS, U8, U64), for_=TAKE_OVER)
def carry_out(journal, index, rows, cold, row_init, counts, number, position):
    """Give a row to the key without one at a position, whose note is valid; return the row, -1 if it gets none."""
    return carry_out_note(journal, note_of(position), index, rows, cold, row_init, counts, number)
