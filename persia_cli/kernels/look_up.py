"""The look-up of a whole batch in one call: find rows, send them, and give rows to ids that have none."""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.buckets import (
    CHUNK,
    INDEX,
    KEYS,
    NOWHERE,
    first_bucket,
    partition_of,
    row_at,
    second_bucket,
    seek,
    settle,
    slot_of,
    touch,
)
from persia_cli.kernels.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.hashing import mix, unmix
from persia_cli.kernels.intrinsics import prefetch
from persia_cli.kernels.old_rows import OLD_ROWS, concerns, keep_row
from persia_cli.kernels.room import claim, least_used, note_eviction, occupy
from persia_cli.kernels.rows import NO_ROW, ROWS, begin_row, prefetch_words, send_row, send_rows

F32, U16, U32, U64, I64, U8 = types.float32, types.uint16, types.uint32, types.uint64, types.int64, types.uint8
ADMISSION = np.uint64(0xD1B54A32D192ED03)
"""A constant that makes the random draw of admission independent of that of initial values."""
FAR, NEAR = np.uint64(16), np.uint64(8)
"""Number of new keys ahead whose candidate buckets are prefetched, and ahead whose rows to evict are."""


class RowInit(NamedTuple):
    """The rules by which new rows are admitted, placed and initialized."""

    seed: np.uint64
    salts: NDArray[np.uint64]
    """uint64[tables]: salt of each table; `bounds` and `admission` are indexed by table number too."""
    bounds: NDArray[np.float32]
    """Initial values lie in [-bound, bound)."""
    admission: NDArray[np.uint64]
    """An id gets a row if its 24-bit random draw is below this value."""
    states: NDArray[np.float32]
    """float32[width - state_at]: initial values of the optimizer's states."""
    most: int
    """Capacity of a partition in rows."""
    evict: bool
    """True if the least recently used row makes room for a new one when the partition is full."""


ROW_INIT = types.NamedTuple((U64, write(U64), write(F32), write(U64), write(F32), I64, types.boolean), RowInit)


class Counts(NamedTuple):
    """Counts of the outcomes of training look-ups; each is int64[tables], by table number."""

    hits: NDArray[np.int64]
    admitted: NDArray[np.int64]
    refused: NDArray[np.int64]
    not_admitted: NDArray[np.int64]
    evicted: NDArray[np.int64]


COUNTS = types.NamedUniTuple(write(I64), 5, Counts)


class FoundRows(NamedTuple):
    """What a look-up writes."""

    rows: NDArray[np.int64]
    """int64[keys]: the row of each key, -1 for none."""
    new: NDArray[np.uint64]
    """uint64[keys], of which the first are used: positions of the keys that had no row before."""
    out: NDArray[np.uint16]
    """uint16[keys * words of a row on the wire]: embeddings, zeros for keys without a row."""


FOUND_ROWS = types.NamedTuple((write(I64), write(U64), write(U16)), FoundRows)


@kernel(types.void(INDEX, ROWS, read(U64), read(U16), I64, write(I64), write(U16)))
def read_rows(index, rows, keys, tables, wire, found, out):
    """Send the row of each (key, table), zeros if it has none; the index is not changed. `found` gets the rows."""
    for start in range(np.uint64(0), np.uint64(keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(keys.size))
        seek(index, keys, start, stop)
        for i in range(start, stop):
            slot = settle(index, keys[i], tables[i], i - start)
            found[i] = NO_ROW
            if slot != NOWHERE:
                found[i] = row_at(index, slot)
        send_rows(rows, found, start, stop, out, wire)


@kernel(types.int64(INDEX, ROWS, OLD_ROWS, ROW_INIT, COUNTS, read(U64), read(U16), U32, U8, I64, I64, FOUND_ROWS))
def look_up(index, rows, old, row_init, counts, keys, tables, step, number, used, wire, found):
    """Send the row of each (key, table) and give rows to new keys; returns the new number of rows in use.

    `used` is the number of rows in use before, `number` that of this look-up modulo 256. First all known keys are
    served and their steps of last use raised to `step`. Then new keys get rows in their order. So no new key evicts a
    row that this batch uses. Rows of a cut that they evict are kept in `old`, which has room for them.
    """
    unknown = np.uint64(0)
    for start in range(np.uint64(0), np.uint64(keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(keys.size))
        seek(index, keys, start, stop)
        for i in range(start, stop):
            slot = settle(index, keys[i], tables[i], i - start)
            if slot == NOWHERE:
                found.rows[i] = NO_ROW
                found.new[unknown] = i
                unknown += np.uint64(1)
            else:
                found.rows[i] = row_at(index, slot)
                touch(index, slot, step)
                counts.hits[tables[i]] += 1
        send_rows(rows, found.rows, start, stop, found.out, wire)
    for m in range(unknown):
        if m + FAR < unknown:
            _prefetch_candidates(index, keys[found.new[m + FAR]])
        if m + NEAR < unknown:
            _prefetch_victim(index, rows, keys[found.new[m + NEAR]], step, row_init.most)
        at = found.new[m]
        row = _admit(index, rows, old, row_init, counts, keys[at], tables[at], step, number, used)
        found.rows[at] = row
        if row >= 0:
            used = max(used, row + 1)
            send_row(rows, row, found.out, at, wire)
    return used


@inlined
def _prefetch_candidates(index, key):
    one = first_bucket(index, key)
    prefetch(index.buckets, one * KEYS)
    prefetch(index.buckets, second_bucket(index, key, one) * KEYS)


@inlined
def _prefetch_victim(index, rows, key, step, most):
    """Prefetch the row that a new key will most likely take from another key."""
    if index.fill[partition_of(index, key)] >= most:
        one = first_bucket(index, key)
        slot = least_used(index, one, second_bucket(index, key, one), step)
        if slot != NOWHERE:
            row = row_at(index, slot)
            prefetch(index.tables, np.uint64(row))
            prefetch(index.reused, np.uint64(row))
            prefetch_words(rows, row, rows.width)


@helper
def _admit(index, rows, old, row_init, counts, key, table, step, number, used):
    """Give a new key a row; returns the row, -1 if it gets none."""
    slot = slot_of(index, key, table, first_bucket(index, key))
    if slot != NOWHERE:
        return row_at(index, slot)
    salt = row_init.salts[table]
    id_ = unmix(key) ^ salt
    draw = mix(mix(mix(row_init.seed) ^ salt) ^ id_ ^ ADMISSION) >> np.uint64(40)
    if draw >= row_init.admission[table]:
        counts.not_admitted[table] += 1
        return NO_ROW
    slot = claim(index, key, step, row_init.most, row_init.evict)
    if slot == NOWHERE:
        counts.refused[table] += 1
        return NO_ROW
    row = row_at(index, slot)
    if row >= 0:
        counts.evicted[index.tables[row]] += 1
        index.reused[row] = number
        note_eviction(index, slot)
        if concerns(old, row):
            keep_row(index, rows, old, slot, row)
    else:
        row = used
        index.fill[partition_of(index, key)] += np.int32(1)
    counts.admitted[table] += 1
    occupy(index, slot, key, table, row, step)
    begin_row(rows, row, row_init.seed, salt, id_, row_init.bounds[table], row_init.states)
    return row
