"""Rows that return from the cold log to memory before a request uses them."""

import numpy as np
from numba import types

from persia_cli.kernels.rows.rows import LANES, ROWS, ZERO
from persia_cli.kernels.table.buckets import INDEX, NOWHERE, first_bucket, slot_of, touch
from persia_cli.kernels.table.cold import COLD, RECORD_HEAD, STOPPED, USES, is_full, remove_from_index
from persia_cli.kernels.table.journal import ADDING, ENTRY, JOURNAL, PROGRESS, note_of, publish, record_skip
from persia_cli.kernels.table.new_keys import COUNTS, ROW_INIT, carry_out_note, log_returned
from persia_cli.kernels.table.old_rows import OLD_ROWS
from persia_cli.kernels.toolchain.compile import inlined, kernel, read
from persia_cli.kernels.toolchain.needs import COLD_ROWS
from persia_cli.kernels.toolchain.simd import load, store

F32, U8, U16, U32, U64, I64 = types.float32, types.uint8, types.uint16, types.uint32, types.uint64, types.int64
NO_SPACE = -1
"""Position in `ColdLog.buffer` if a row cannot return, because all rows that it could replace are in use."""


@kernel(
    types.int64(
        JOURNAL, INDEX, ROWS, OLD_ROWS, COLD, ROW_INIT, COUNTS, read(U64), read(U16), read(I64), read(F32), read(U32),
        U32, U8, I64,
    ), for_=COLD_ROWS
)  # fmt: skip
def bring_back(
    journal, index, rows, old, cold, row_init, counts, keys, tables, records, words, marks, step, number, used
):  # fmt: skip
    """Give rows in memory to keys, with the content of their records; return the rows in use.

    `words` and `marks` are the records one after the other. Rows last used before `step` may be evicted, and steps of
    last use become `step`. `cold.buffer` gets the position at which the buffer was full, the number of keys, or
    NO_SPACE. The notes of `journal` are as those of a look-up; a repeat after a kill brings back the rest.
    """
    size = RECORD_HEAD + rows.width
    for i in range(np.uint64(keys.size)):
        if is_full(cold):
            cold.buffer[STOPPED] = i
            record_skip(journal, i - np.uint64(1), ADDING)
            return used
        slot = slot_of(index, keys[i], tables[i], first_bucket(index, keys[i]))
        if slot != NOWHERE:
            touch(index, slot, step)
            record_skip(journal, i, ADDING)
            continue
        base = note_of(i)
        _note_content(journal, base, words, i * size + RECORD_HEAD, rows.width)
        if not log_returned(
            journal, base, index, rows, old, cold, row_init.eviction, counts, keys[i], tables[i], step, used
        ):  # fmt: skip
            cold.buffer[STOPPED] = NO_SPACE
            record_skip(journal, i - np.uint64(1), ADDING)
            return used
        journal.notes[base + ENTRY.uses] = np.uint64(marks[i * size + USES])
        publish(journal.words, PROGRESS, ADDING | journal.group | i)
        row = carry_out_note(journal, base, index, rows, cold, row_init, counts, number)
        used = max(used, row + 1)
        remove_from_index(cold, keys[i], np.uint64(records[i]))
    cold.buffer[STOPPED] = np.int64(keys.size)
    record_skip(journal, np.uint64(keys.size) - np.uint64(1), ADDING)
    return used


@inlined
def _note_content(journal, base, words, at, width):
    """Copy a record's row to the journal's place for the note that begins at word `base`."""
    to = (np.uint64(journal.rows.size) >> np.uint64(1)) * np.uint64(base != ZERO)
    for word in range(ZERO, width, LANES):
        lanes = np.int64(width - word)
        store(journal.rows, to + word, load(words, at + word, lanes), lanes)
