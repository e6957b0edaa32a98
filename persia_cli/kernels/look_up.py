"""A look-up of a whole batch in one call: find rows, send them, and give rows to ids that have none."""

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
from persia_cli.kernels.hashing import _mix, _unmix
from persia_cli.kernels.intrinsics import prefetch
from persia_cli.kernels.room import claim, least_used, occupy
from persia_cli.kernels.rows import NO_ROW, ROWS, begin_row, prefetch_words, send_row, send_rows

F32, U16, U32, U64, I64, U8 = types.float32, types.uint16, types.uint32, types.uint64, types.int64, types.uint8
ADMISSION = np.uint64(0xD1B54A32D192ED03)
"""Sets the draw of admission apart from that of initial values."""
FAR, NEAR = np.uint64(16), np.uint64(8)
"""New keys ahead whose candidate buckets are asked for, and whose victims' rows."""


class Birth(NamedTuple):
    """How new rows come to be."""

    seed: np.uint64
    salts: NDArray[np.uint64]
    """uint64[tables] by table number, as the next two."""
    bounds: NDArray[np.float32]
    """Initial values lie in [-bound, bound)."""
    admission: NDArray[np.uint64]
    """Ids whose 24-bit draw is below it get a row."""
    states: NDArray[np.float32]
    """See `begin_row`."""
    most: int
    """Rows of a partition at capacity."""
    evict: bool
    """Whether a row used less lately makes room when there is none."""


BIRTH = types.NamedTuple((U64, write(U64), write(F32), write(U64), write(F32), I64, types.boolean), Birth)


class Counts(NamedTuple):
    """int64[tables] each: what became of the keys of training look-ups, by table number."""

    hits: NDArray[np.int64]
    admitted: NDArray[np.int64]
    refused: NDArray[np.int64]
    not_admitted: NDArray[np.int64]
    evicted: NDArray[np.int64]


COUNTS = types.NamedUniTuple(write(I64), 5, Counts)


@kernel(types.void(INDEX, ROWS, read(U64), read(U16), I64, write(I64), write(U16)))
def read_rows(index, rows, keys, tables, wire, found, out):
    """Send the row of each (key, table), zeros where there is none; changes nothing. `found` gets the rows."""
    for start in range(np.uint64(0), np.uint64(keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(keys.size))
        seek(index, keys, start, stop)
        for i in range(start, stop):
            slot = settle(index, keys[i], tables[i], i - start)
            found[i] = NO_ROW
            if slot != NOWHERE:
                found[i] = row_at(index, slot)
        send_rows(rows, found, start, stop, out, wire)


@kernel(
    types.int64(
        INDEX, ROWS, BIRTH, COUNTS, read(U64), read(U16), U32, U8, I64, I64, write(I64), write(U64), write(U16)
    )
)  # fmt: skip
def look_up(index, rows, birth, counts, keys, tables, step, number, used, wire, found, missing, out):
    """Send the row of each (key, table), giving one to those that have none; returns the rows used from now on.

    Rows up to `used` are taken already; `number` is that of this look-up modulo 256. First all known keys are served
    and their scores raised to `step`; then new ones get rows in their order, so that none takes the row of another
    key of the batch. `found` gets the rows, -1 where there was no room; `missing` is room to work in, as long as keys.
    """
    unknown = np.uint64(0)
    for start in range(np.uint64(0), np.uint64(keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(keys.size))
        seek(index, keys, start, stop)
        for i in range(start, stop):
            slot = settle(index, keys[i], tables[i], i - start)
            if slot == NOWHERE:
                found[i] = NO_ROW
                missing[unknown] = i
                unknown += np.uint64(1)
            else:
                found[i] = row_at(index, slot)
                touch(index, slot, step)
                counts.hits[tables[i]] += 1
        send_rows(rows, found, start, stop, out, wire)
    for m in range(unknown):
        if m + FAR < unknown:
            _prefetch_candidates(index, keys[missing[m + FAR]])
        if m + NEAR < unknown:
            _prefetch_victim(index, rows, keys[missing[m + NEAR]], step, birth.most)
        at = missing[m]
        row = _admit(index, rows, birth, counts, keys[at], tables[at], step, number, used)
        found[at] = row
        if row >= 0:
            used = max(used, row + 1)
            send_row(rows, row, out, at, wire)
    return used


@inlined
def _prefetch_candidates(index, key):
    one = first_bucket(index, key)
    prefetch(index.buckets, one * KEYS)
    prefetch(index.buckets, second_bucket(index, key, one) * KEYS)


@inlined
def _prefetch_victim(index, rows, key, step, most):
    """Ask for the row that a new key will most likely take from another one."""
    if index.fill[partition_of(index, key)] >= most:
        one = first_bucket(index, key)
        slot = least_used(index, one, second_bucket(index, key, one), step)
        if slot != NOWHERE:
            row = row_at(index, slot)
            prefetch(index.tables, np.uint64(row))
            prefetch(index.reused, np.uint64(row))
            prefetch_words(rows, row, rows.width)


@helper
def _admit(index, rows, birth, counts, key, table, step, number, used):
    """Give a new key a row and return it, -1 if it gets none."""
    slot = slot_of(index, key, table, first_bucket(index, key))
    if slot != NOWHERE:
        return row_at(index, slot)
    salt = birth.salts[table]
    id_ = _unmix(key) ^ salt
    draw = _mix(_mix(_mix(birth.seed) ^ salt) ^ id_ ^ ADMISSION) >> np.uint64(40)
    if draw >= birth.admission[table]:
        counts.not_admitted[table] += 1
        return NO_ROW
    slot = claim(index, key, step, birth.most, birth.evict)
    if slot == NOWHERE:
        counts.refused[table] += 1
        return NO_ROW
    row = row_at(index, slot)
    if row >= 0:
        counts.evicted[index.tables[row]] += 1
        index.reused[row] = number
    else:
        row = used
        index.fill[partition_of(index, key)] += np.int32(1)
    counts.admitted[table] += 1
    occupy(index, slot, key, table, row, step)
    begin_row(rows, row, birth.seed, salt, id_, birth.bounds[table], birth.states)
    return row
