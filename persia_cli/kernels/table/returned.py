"""Rows that return from the cold log to memory before a request uses them."""

import numpy as np
from numba import types

from persia_cli.kernels.rows.rows import LANES, ZERO
from persia_cli.kernels.table.arguments import REQUEST, TABLE
from persia_cli.kernels.table.buckets import NOWHERE, first_bucket, slot_of, touch
from persia_cli.kernels.table.cold import RECORD_HEAD, USES, is_full, remove_from_index
from persia_cli.kernels.table.journal import ADDING, ENTRY, PROGRESS, note_of, publish, record_skip
from persia_cli.kernels.table.look_up import RESULT
from persia_cli.kernels.table.new_keys import carry_out_note, log_returned
from persia_cli.kernels.toolchain.compile import inlined, kernel, read
from persia_cli.kernels.toolchain.needs import COLD_ROWS
from persia_cli.kernels.toolchain.simd import load, store

F32, U32, I64 = types.float32, types.uint32, types.int64
NO_SPACE = -1
"""Position if a row cannot return, because all rows that it could replace are in use."""


@kernel(RESULT(TABLE, REQUEST, read(I64), read(F32), read(U32), I64), for_=COLD_ROWS)
def bring_back(table, request, records, words, marks, used):
    """Give rows in memory to keys, with the content of their records; return the rows in use, and where it stopped.

    `words` and `marks` are the records one after the other. Rows last used before `step` may be evicted, and steps of
    last use become `step`. The second value is the position at which the buffer was full, the number of keys, or
    NO_SPACE. The notes of the journal are as those of a look-up; a repeat after a kill brings back the rest.
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
        base = note_of(i)
        _note_content(journal, base, words, i * size + RECORD_HEAD, rows.width)
        if not log_returned(table, base, key, number, step, used):
            record_skip(journal, i - np.uint64(1), ADDING)
            return used, np.int64(NO_SPACE)
        journal.notes[base + ENTRY.uses] = np.uint64(marks[i * size + USES])
        publish(journal.words, PROGRESS, ADDING | journal.group | i)
        row = carry_out_note(table, base, request.number)
        used = max(used, row + 1)
        remove_from_index(cold, key, np.uint64(records[i]))
    record_skip(journal, np.uint64(request.keys.size) - np.uint64(1), ADDING)
    return used, np.int64(request.keys.size)


@inlined
def _note_content(journal, base, words, at, width):
    """Copy a record's row to the journal's place for the note that begins at word `base`."""
    to = (np.uint64(journal.rows.size) >> np.uint64(1)) * np.uint64(base != ZERO)
    for word in range(ZERO, width, LANES):
        lanes = np.int64(width - word)
        store(journal.rows, to + word, load(words, at + word, lanes), lanes)
