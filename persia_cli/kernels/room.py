"""Slots for new keys: an empty one, one freed by moving keys, or that of the row used least lately."""

import numpy as np
from numba import types

from persia_cli.kernels.buckets import (
    INDEX,
    KEYS,
    MARKS,
    NOWHERE,
    PATHS,
    ROWS,
    SCORES,
    SLOTS,
    first_bucket,
    lowest_bit,
    partition_of,
    score_word,
    second_bucket,
    slot_of,
    taken,
)
from persia_cli.kernels.compile import helper, inlined, kernel, read, write

REPEATED = -2
"""In place of the row of a key that is there already."""


@helper
def _move(index, source, target):
    """Copy what a slot holds into another."""
    from_bucket, to_bucket = source >> np.uint64(2), target >> np.uint64(2)
    from_place, to_place = source & np.uint64(3), target & np.uint64(3)
    index.buckets[to_bucket * KEYS + to_place] = index.buckets[from_bucket * KEYS + from_place]
    for part in (ROWS, SCORES):
        index.marks[to_bucket * MARKS + part + to_place] = index.marks[from_bucket * MARKS + part + from_place]


@helper
def _shift(index, one, other):
    """Free a slot of two full buckets by moving keys to their other candidates; NOWHERE if none can be found.

    Breadth first, so that as few keys as possible move; `scratch` holds the buckets looked at, and before each the
    place in the list and slot whose key would move there.
    """
    paths = index.scratch
    paths[1], paths[3] = one, other
    known = np.uint64(2)
    at = np.uint64(0)
    while at < known:
        bucket = paths[np.uint64(2) * at + np.uint64(1)]
        for place in range(np.uint64(SLOTS)):
            slot = bucket * np.uint64(SLOTS) + place
            key = index.buckets[bucket * KEYS + place]
            home = first_bucket(index, key)
            away = second_bucket(index, key, home) if home == bucket else home
            if taken(index, away) != np.uint64(15):
                _move(index, slot, _empty_slot(index, away, away))
                while at >= np.uint64(2):
                    parent = paths[np.uint64(2) * at]
                    at, target = parent >> np.uint64(2), slot
                    bucket = paths[np.uint64(2) * at + np.uint64(1)]
                    slot = bucket * np.uint64(SLOTS) + (parent & np.uint64(3))
                    _move(index, slot, target)
                index.marks[(slot >> np.uint64(2)) * MARKS + ROWS + (slot & np.uint64(3))] = np.uint32(0)
                return slot
            if known < np.uint64(PATHS):
                paths[np.uint64(2) * known] = (at << np.uint64(2)) | place
                paths[np.uint64(2) * known + np.uint64(1)] = away
                known += np.uint64(1)
        at += np.uint64(1)
    return NOWHERE


@helper
def least_used(index, one, other, step):
    """The slot of the lowest score below `step` in the key's candidate buckets, or NOWHERE.

    The second bucket is a candidate only if the first is full; of equal scores the first counts.
    """
    best, lowest = NOWHERE, np.uint32(min(step, np.uint64(2**32 - 1)))
    full = taken(index, one) == np.uint64(15)
    for bucket in (one, other):
        if bucket == one or full:
            bits = taken(index, bucket)
            while bits != np.uint64(0):
                slot = bucket * np.uint64(SLOTS) + lowest_bit(bits)
                if index.marks[score_word(slot)] < lowest:
                    best, lowest = slot, index.marks[score_word(slot)]
                bits &= bits - np.uint64(1)
    return best


@helper
def claim(index, key, step, most, evict):
    """A slot for a new key, empty or to be taken from a row used less lately; NOWHERE when there is no room.

    In a partition of fewer than `most` rows an empty slot, if need be one freed by moving keys. Otherwise, if `evict`,
    that of the lowest score below `step`; and where all are in use at this step, an empty slot after all.
    """
    one = first_bucket(index, key)
    two = second_bucket(index, key, one)
    if index.fill[partition_of(index, key)] < most:
        slot = _empty_slot(index, one, two)
        if slot == NOWHERE:
            slot = _shift(index, one, two)
        if slot != NOWHERE:
            return slot
    if not evict:
        return NOWHERE
    slot = least_used(index, one, two, step)
    return slot if slot != NOWHERE else _empty_slot(index, one, two)


@inlined
def _empty_slot(index, one, two):
    """An empty slot of a key's candidate buckets, the first before the second, or NOWHERE."""
    for bucket in (one, two):
        places = taken(index, bucket)
        if places != np.uint64(15):
            return bucket * np.uint64(SLOTS) + lowest_bit(~places)
    return NOWHERE


@inlined
def occupy(index, slot, key, table, row, step):
    """Give a slot and a row to (key, table)."""
    bucket, place = slot >> np.uint64(2), slot & np.uint64(3)
    index.buckets[bucket * KEYS + place] = key
    index.marks[bucket * MARKS + ROWS + place] = np.uint32(row + 1)
    index.marks[bucket * MARKS + SCORES + place] = step
    index.tables[row] = table


@kernel(types.int64(INDEX, read(types.uint64), read(types.uint16), read(types.uint32), types.int64, write(types.int64)))
def insert(index, keys, tables, scores, used, rows):
    """Give a row to each (key, table) with its score; rows up to `used` are taken. Returns the rows used then.

    `rows` gets -1 where there is no room, REPEATED where the key has a row already.
    """
    most = np.int64(index.size) * SLOTS
    for i in range(np.uint64(keys.size)):
        rows[i] = REPEATED
        if slot_of(index, keys[i], tables[i], first_bucket(index, keys[i])) == NOWHERE:
            slot = claim(index, keys[i], np.uint32(0), most, False)
            rows[i] = -1
            if slot != NOWHERE:
                rows[i] = used
                index.fill[partition_of(index, keys[i])] += np.int32(1)
                occupy(index, slot, keys[i], tables[i], used, scores[i])
                used += 1
    return used
