"""Rows of a cut that have changed since, as they were: a checkpoint is written while training goes on.

A cut is the content of a row store at one moment. Its rows are copied one after the other. A row that is to change, or
to be given to another key, before its turn is kept here first. A row is *settled* once it has been copied or kept: what
happens to it afterwards is none of the cut's business. Rows beyond those in use at the cut do not concern it either.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.buckets import (
    CHUNK,
    INDEX,
    KEYS,
    NOWHERE,
    SLOTS,
    last_used_word,
    partition_of,
    row_at,
    seek,
    settle,
    taken,
)
from persia_cli.kernels.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.intrinsics import lowest_bit, prefetch
from persia_cli.kernels.rows import ROWS, prefetch_words

F32, U8, U16, U32, U64, I64 = types.float32, types.uint8, types.uint16, types.uint32, types.uint64, types.int64
AHEAD = np.uint64(16)
"""Number of rows ahead that are prefetched while rows are copied."""
WORDS_OF_LINE = np.uint64(16)
NONE = -1
"""End of a chain of places."""


class OldRows(NamedTuple):
    """Room for rows as they were at the cut; all arrays are empty while there is no cut."""

    settled: NDArray[np.uint8]
    """uint8[rows in use at the cut]: 1 for rows that have been copied or kept."""
    keys: NDArray[np.uint64]
    """uint64[places]; `last_used` uint32 and `tables` uint16 have as many."""
    last_used: NDArray[np.uint32]
    tables: NDArray[np.uint16]
    words: NDArray[np.float32]
    """float32[places * width]: the row's words in the arena."""
    free: NDArray[np.int64]
    """int64[places]: the free places, the next one to take last."""
    counts: NDArray[np.int64]
    """int64[2]: number of these, and of the rows that are not settled."""
    heads: NDArray[np.int64]
    """int64[partitions]: place of the last row kept of each of the server's partitions, NONE without one."""
    following: NDArray[np.int64]
    """int64[places]: place of the row kept before of the same partition, or NONE."""


OLD_ROWS = types.NamedTuple(
    (write(U8), write(U64), write(U32), write(U16), write(F32), write(I64), write(I64), write(I64), write(I64)), OldRows
)


@inlined
def concerns(old, row):
    """Return whether a row is in the cut and neither copied nor kept yet."""
    return np.uint64(row) < np.uint64(old.settled.size) and old.settled[row] == 0


@helper
def keep_row(index, rows, old, slot, row):
    """Keep the row of a slot as it is now; there must be a free place."""
    old.counts[0] -= 1
    old.counts[1] -= 1
    place = old.free[old.counts[0]]
    old.settled[row] = 1
    key = index.buckets[(slot >> np.uint64(2)) * KEYS + (slot & np.uint64(3))]
    partition = partition_of(index, key)
    old.following[place] = old.heads[partition]
    old.heads[partition] = place
    old.keys[place] = key
    old.tables[place] = index.tables[row]
    old.last_used[place] = index.marks[last_used_word(slot)]
    _copy(rows.arena, np.uint64(row) * rows.width, old.words, np.uint64(place) * rows.width, rows.width)


@inlined
def _copy(source, at, target, to, words):
    for word in range(words):
        target[to + word] = source[at + word]


@kernel(types.int64(INDEX, ROWS, OLD_ROWS, read(U64), read(U16), I64))
def keep_before_write(index, rows, old, keys, tables, first):
    """Keep the rows of (key, table) from position `first` on, which are about to change.

    Returns the position of the first one that there is no free place for, or that of one beyond the last.
    """
    for start in range(np.uint64(first), np.uint64(keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(keys.size))
        seek(index, keys, start, stop)
        for i in range(start, stop):
            slot = settle(index, keys[i], tables[i], i - start)
            index.scratch[i - start] = slot
            if slot != NOWHERE:
                prefetch(old.settled, np.uint64(row_at(index, slot)))
        for i in range(start, stop):
            slot = index.scratch[i - start]
            if slot != NOWHERE and concerns(old, row_at(index, slot)):
                prefetch_words(rows, row_at(index, slot), rows.width)
            else:
                index.scratch[i - start] = NOWHERE
        for i in range(start, stop):
            slot = index.scratch[i - start]
            # Asked again: a message from outside may have a key twice.
            if slot != NOWHERE and concerns(old, row_at(index, slot)):
                if old.counts[0] == 0:
                    return np.int64(i)
                keep_row(index, rows, old, slot, row_at(index, slot))
    return np.int64(keys.size)


@kernel(types.UniTuple(types.int64, 2)(INDEX, OLD_ROWS, read(U64), read(U16)))
def count_changing(index, old, keys, tables):
    """Return how many rows of (key, table) would have to be kept, and how many have no row."""
    known, unknown = 0, 0
    for start in range(np.uint64(0), np.uint64(keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(keys.size))
        seek(index, keys, start, stop)
        for i in range(start, stop):
            slot = settle(index, keys[i], tables[i], i - start)
            if slot == NOWHERE:
                unknown += 1
            elif concerns(old, row_at(index, slot)):
                known += 1
    return known, unknown


@kernel(types.int64(INDEX, OLD_ROWS, U64, U64, write(U64), write(U16), write(U32), write(I64)))
def list_rows(index, old, first, last, keys, tables, last_used, sources):
    """List the rows of the cut in the partitions [first, last), counted from the server's own first one.

    Returns their number. `sources` says where each is: row number, or -1 - place for those that are kept. They must be
    taken before anything else happens to the store.
    """
    found = 0
    for bucket in range(first * index.size, last * index.size):
        bits = taken(index, bucket)
        while bits != np.uint64(0):
            slot = bucket * np.uint64(SLOTS) + lowest_bit(bits)
            row = row_at(index, slot)
            if concerns(old, row):
                keys[found] = index.buckets[bucket * KEYS + (slot & np.uint64(3))]
                tables[found] = index.tables[row]
                last_used[found] = index.marks[last_used_word(slot)]
                sources[found] = row
                found += 1
            bits &= bits - np.uint64(1)
    for partition in range(first, last):
        place = old.heads[partition]
        old.heads[partition] = NONE
        while place != NONE:
            keys[found] = old.keys[place]
            tables[found] = old.tables[place]
            last_used[found] = old.last_used[place]
            sources[found] = -1 - place
            found += 1
            place = old.following[place]
    return found


@kernel(types.void(ROWS, OLD_ROWS, read(I64), write(F32)))
def take_rows(rows, old, sources, words):
    """Copy rows to `words` float32[n * width] from where `sources` says; they are settled, and their places free."""
    for i in range(np.uint64(sources.size)):
        if i + AHEAD < np.uint64(sources.size) and sources[i + AHEAD] >= 0:
            ahead = np.uint64(sources[i + AHEAD]) * rows.width
            for word in range(np.uint64(0), rows.width, WORDS_OF_LINE):
                prefetch(rows.arena, ahead + word)
        source = sources[i]
        if source >= 0:
            _copy(rows.arena, np.uint64(source) * rows.width, words, i * rows.width, rows.width)
            old.settled[source] = 1
            old.counts[1] -= 1
        else:
            place = -1 - source
            _copy(old.words, np.uint64(place) * rows.width, words, i * rows.width, rows.width)
            old.free[old.counts[0]] = place
            old.counts[0] += 1
