"""Kernels that search the index of a row store and change none of its rows."""

import numpy as np
from numba import types

from persia_cli.kernels.table.buckets import (
    CHUNK,
    INDEX,
    NOWHERE,
    confirm_slot,
    first_bucket,
    row_at,
    seek,
    slot_of,
    touch,
)
from persia_cli.kernels.toolchain.compile import inlined, kernel, read, write
from persia_cli.kernels.toolchain.needs import COLD_ROWS, SAVING, SERVER, TAKE_OVER, TRAINING

U8, U16, U32, U64, I64 = types.uint8, types.uint16, types.uint32, types.uint64, types.int64


@kernel(types.int64(read(U64), read(U16), read(U8), U64, U64, U64), for_=SERVER)
def first_foreign(keys, tables, members, first, partitions, count):
    """Return the position of the first key that does not belong to this server and group, or -1.

    The server has `count` partitions from `first` on; members[t] is 1 if table t is in the group.
    """
    foreign = False
    for i in range(np.uint64(keys.size)):
        foreign |= _is_foreign(keys[i], tables[i], members, first, partitions, count)
    if foreign:
        for i in range(np.uint64(keys.size)):
            if _is_foreign(keys[i], tables[i], members, first, partitions, count):
                return np.int64(i)
    return np.int64(-1)


@inlined
def _is_foreign(key, table, members, first, partitions, count):
    partition = ((key >> np.uint64(32)) * partitions) >> np.uint64(32)
    last = np.uint64(members.size - 1)
    return (partition - first >= count) | (table > last) | (members[min(np.uint64(table), last)] == 0)


@kernel(types.void(INDEX, read(U64), read(U16), U32, write(I64)), for_=(TAKE_OVER, COLD_ROWS, SAVING))
def find_and_touch(index, keys, tables, step, rows):
    """Write the row of each (key, table), or -1, and raise the step of last use of the rows found to `step`."""
    for start in range(np.uint64(0), np.uint64(keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(keys.size))
        seek(index, keys, start, stop)
        for i in range(start, stop):
            slot = confirm_slot(index, keys[i], tables[i], i - start)
            rows[i] = -1
            if slot != NOWHERE:
                rows[i] = row_at(index, slot)
                touch(index, slot, step)


@kernel(types.int64(read(U64), read(U16), read(U64), read(U16), read(I64)), for_=TRAINING)
def same_keys(keys, tables, earlier_keys, earlier_tables, earlier_rows):
    """Compare keys with those of a look-up: return 0 if they differ, 1 if some have no row, 2 if all have one."""
    if keys.size != earlier_keys.size:
        return 0
    same, all_there = True, True
    for i in range(np.uint64(keys.size)):
        same &= (keys[i] == earlier_keys[i]) & (tables[i] == earlier_tables[i])
        all_there &= earlier_rows[i] >= 0
    return (2 if all_there else 1) if same else 0


@kernel(types.void(INDEX, read(U64), read(U16), U8, U8, write(I64)))
def verify(index, keys, tables, since, age, rows):
    """Correct the rows that an earlier look-up found, after rows were given to other keys.

    `since` is that look-up's number modulo 256 and `age`, below 256, the number of look-ups after it. Keys whose row
    was reused since then, and keys without a row, are searched again.
    """
    for i in range(keys.size):
        row = rows[i]
        if row >= 0:
            reused = np.uint8(index.reused[row] - since)
            if reused == 0 or reused > age:
                continue
        slot = slot_of(index, keys[i], tables[i], first_bucket(index, keys[i]))
        rows[i] = -1
        if slot != NOWHERE:
            rows[i] = row_at(index, slot)
