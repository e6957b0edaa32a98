"""The index of a row store: (key, table) to row, open addressing with linear probing.

A slot holds a key and row + 1; 0 means empty, so every key is ordinary. A key's first slot follows its high 32 bits
(`home`): slots lie in the order of partitions, and what happens in one partition does not touch the others. `info` has
one word per row: table number in the high 16 bits, score (step of last use) in the low 48.
"""

import numpy as np
from numba import njit, types

from persia_cli.kernels.compile import kernel, read, write
from persia_cli.kernels.intrinsics import prefetch

U16, U32, U64, I64, U8 = types.uint16, types.uint32, types.uint64, types.int64, types.uint8
TABLE_SHIFT = np.uint64(48)
SCORE_MASK = np.uint64(2**48 - 1)
CHUNK = 64
"""Keys whose memory is asked for ahead of being read."""


@njit(inline="always")
def _home(key, start, scale):
    return (((key >> np.uint64(32)) - start) * scale) >> np.uint64(32)


@njit(inline="always")
def _first_candidate(index_keys, index_rows, key, slot):
    """From `slot` on, the first slot that is empty or holds the key, of whatever table."""
    while index_rows[slot] != 0 and index_keys[slot] != key:
        slot += np.uint64(1)
        if slot == np.uint64(index_keys.size):
            slot = np.uint64(0)
    return slot


@njit(inline="always")
def _settle(index_keys, index_rows, info, key, table, slot):
    """From a candidate on, the slot of (key, table), or the empty slot where it would be.

    A candidate that was empty may have been taken since, so it is looked at again.
    """
    slot = _first_candidate(index_keys, index_rows, key, slot)
    while index_rows[slot] != 0 and info[index_rows[slot] - np.uint32(1)] >> TABLE_SHIFT != np.uint64(table):
        slot += np.uint64(1)
        if slot == np.uint64(index_keys.size):
            slot = np.uint64(0)
        slot = _first_candidate(index_keys, index_rows, key, slot)
    return slot


@njit
def _seek(index_keys, index_rows, info, start, scale, keys, first, count, slots):
    """Candidate slots of keys[first:first + count], their memory asked for ahead."""
    for i in range(count):
        slot = _home(keys[first + i], start, scale)
        slots[i] = slot
        prefetch(index_keys, slot)
        prefetch(index_rows, slot)
    for i in range(count):
        slot = _first_candidate(index_keys, index_rows, keys[first + i], slots[i])
        slots[i] = slot
        if index_rows[slot] != 0:
            prefetch(info, np.uint64(index_rows[slot] - np.uint32(1)))


@kernel(types.int64(read(U64), read(U16), read(U8), U64, U64))
def first_foreign(keys, tables, members, start, span):
    """Position of the first key of another server's partitions or another group's table; -1 when there is none."""
    for i in range(keys.size):
        if (keys[i] >> np.uint64(32)) - start >= span or tables[i] >= members.size or members[tables[i]] == 0:
            return i
    return -1


@kernel(types.void(read(U64), read(U32), read(U64), U64, U64, read(U64), read(U16), write(I64)))
def find(index_keys, index_rows, info, start, scale, keys, tables, rows):
    """Write the row of each (key, table), or -1."""
    slots = np.empty(CHUNK, np.uint64)
    for first in range(0, keys.size, CHUNK):
        count = min(CHUNK, keys.size - first)
        _seek(index_keys, index_rows, info, start, scale, keys, first, count, slots)
        for i in range(count):
            at = first + i
            slot = _settle(index_keys, index_rows, info, keys[at], tables[at], slots[i])
            rows[at] = np.int64(index_rows[slot]) - 1


@kernel(
    types.int64(
        write(U64), write(U32), write(U64), U64, U64, I64, read(U64), read(U16), U64,
        write(I64), write(I64), write(I64), write(I64), write(I64),
    )
)  # fmt: skip
def find_or_create(
    index_keys, index_rows, info, start, scale, used, keys, tables, step, rows, created, hits, creations, refusals
):
    """Write the row of each (key, table), taking the next free row for unknown ones; -1 when no row is left.

    `used` rows are taken already; scores rise to `step`. Writes the positions of new rows to `created` and counts
    per table number. Returns how many rows were created.
    """
    slots = np.empty(CHUNK, np.uint64)
    new = 0
    for first in range(0, keys.size, CHUNK):
        count = min(CHUNK, keys.size - first)
        _seek(index_keys, index_rows, info, start, scale, keys, first, count, slots)
        for i in range(count):
            at = first + i
            key, table = keys[at], tables[at]
            slot = _settle(index_keys, index_rows, info, key, table, slots[i])
            if index_rows[slot] != 0:
                row = np.int64(index_rows[slot]) - 1
                info[row] = (info[row] & ~SCORE_MASK) | max(info[row] & SCORE_MASK, step)
                hits[table] += 1
            elif used + new < info.size:
                row = used + new
                index_keys[slot] = key
                index_rows[slot] = np.uint32(row + 1)
                info[row] = (np.uint64(table) << TABLE_SHIFT) | step
                creations[table] += 1
                created[new] = at
                new += 1
            else:
                row = -1
                refusals[table] += 1
            rows[at] = row
    return new


@kernel(types.int64(read(U64), read(U32), U64, U64, U64, U64, write(I64)))
def collect(index_keys, index_rows, start, scale, low, high, slots):
    """Write the slots of all keys whose high 32 bits are in [low, high), as far as there is room; returns how many."""
    slot = _home(low << np.uint64(32), start, scale)
    least = np.int64(_home((high - np.uint64(1)) << np.uint64(32), start, scale) - slot) + 1
    found = 0
    for seen in range(index_keys.size):
        if index_rows[slot] == 0:
            if seen >= least:
                break
        elif low <= index_keys[slot] >> np.uint64(32) < high:
            if found < slots.size:
                slots[found] = slot
            found += 1
        slot += np.uint64(1)
        if slot == np.uint64(index_keys.size):
            slot = np.uint64(0)
    return found
