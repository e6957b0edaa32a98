"""Copy-on-write of rows: a checkpoint is written while training continues.

A snapshot is the content of a row store at one moment. Its rows are copied one after the other. A row that will change,
or be given to another key, before its turn is copied here first. A row is *saved* once it has been copied in either
way; later changes do not affect the snapshot. Rows beyond those in use at the snapshot do not belong to it, nor do
rows last used before a step: they are not copied, and passed over by their marks alone, which are read in order.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.rows.rows import (
    FLOAT32,
    LANES,
    LINE,
    ROWS,
    TWO,
    ZERO,
    RowArena,
    copy_words,
    embedding_lanes,
    prefetch_words,
)
from persia_cli.kernels.table.buckets import (
    CHUNK,
    INDEX,
    KEYS,
    NOWHERE,
    SLOTS,
    confirm_slot,
    last_used_word,
    partition_of,
    row_at,
    seek,
)
from persia_cli.kernels.toolchain.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import prefetch, prefetch_to_l2
from persia_cli.kernels.toolchain.needs import SAVING
from persia_cli.kernels.toolchain.simd import load, store

F32, U8, U16, U32, U64, I64 = types.float32, types.uint8, types.uint16, types.uint32, types.uint64, types.int64
AHEAD = np.uint64(64)
"""Number of rows ahead that are prefetched while rows are listed and copied."""
NEAR = np.uint64(32)
"""The same number for rows that are copied without a loop."""
NONE = -1
"""End of a chain of cells."""


class OldRows(NamedTuple):
    """Memory for old rows of a snapshot, one in each cell; all arrays are empty while there is none."""

    saved: NDArray[np.uint8]
    """uint8[rows in use at the snapshot]: 1 for rows that are saved."""
    keys: NDArray[np.uint64]
    """uint64[cells]; `last_used`, `uses` (both uint32) and `tables` (uint16) have as many."""
    last_used: NDArray[np.uint32]
    uses: NDArray[np.uint32]
    """As in the index; 0 if it does not have them."""
    tables: NDArray[np.uint16]
    words: NDArray[np.float32]
    """float32[cells * width]: the row's words in the arena."""
    free: NDArray[np.int64]
    """int64[cells]: the free cells; the last one is taken next."""
    counts: NDArray[np.int64]
    """int64[3]: number of free cells, of rows that are not saved, and the step from which on a used row is copied."""
    heads: NDArray[np.int64]
    """int64[partitions]: cell of the last copied row of each of the server's partitions, NONE without one."""
    following: NDArray[np.int64]
    """int64[cells]: cell of the row copied before of the same partition, or NONE."""


OLD_ROWS = types.NamedTuple(
    (
        write(U8), write(U64), write(U32), write(U32), write(U16), write(F32), write(I64), write(I64), write(I64),
        write(I64),
    ),
    OldRows,
)  # fmt: skip


@inlined
def must_save(old, row):
    """Return whether a row is in the snapshot and not saved yet."""
    return np.uint64(row) < np.uint64(old.saved.size) and old.saved[row] == 0


@helper
def copy_row(index, rows, old, slot, row):
    """Copy the present row of a slot if it is in the snapshot; there must be a free cell."""
    old.counts[1] -= 1
    old.saved[row] = 1
    last_used = index.marks[last_used_word(slot)]
    if np.int64(last_used) < old.counts[2]:
        return
    old.counts[0] -= 1
    cell = old.free[old.counts[0]]
    key = index.buckets[(slot >> np.uint64(2)) * KEYS + (slot & np.uint64(3))]
    partition = partition_of(index, key)
    old.following[cell] = old.heads[partition]
    old.heads[partition] = cell
    old.keys[cell] = key
    old.tables[cell] = index.tables[row]
    old.last_used[cell] = last_used
    if index.uses.size:
        old.uses[cell] = index.uses[row]
    copy_words(rows.arena, np.uint64(row) * rows.width, old.words, np.uint64(cell) * rows.width, rows.width)


@kernel(types.int64(INDEX, ROWS, OLD_ROWS, read(U64), read(U16), I64), for_=SAVING)
def copy_before_write(index, rows, old, keys, tables, first):
    """Copy the rows of (key, table) from position `first` on, which are about to change.

    Return the position of the first row without a free cell, or the number of keys.
    """
    for start in range(np.uint64(first), np.uint64(keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(keys.size))
        seek(index, keys, start, stop)
        for i in range(start, stop):
            slot = confirm_slot(index, keys[i], tables[i], i - start)
            index.scratch[i - start] = slot
            if slot != NOWHERE:
                prefetch(old.saved, np.uint64(row_at(index, slot)))
        for i in range(start, stop):
            slot = index.scratch[i - start]
            if slot != NOWHERE and must_save(old, row_at(index, slot)):
                prefetch_words(rows, row_at(index, slot), rows.width)
            else:
                index.scratch[i - start] = NOWHERE
        for i in range(start, stop):
            slot = index.scratch[i - start]
            # Checked again: a message from another process may have a key twice.
            if slot != NOWHERE and must_save(old, row_at(index, slot)):
                if old.counts[0] == 0:
                    return np.int64(i)
                copy_row(index, rows, old, slot, row_at(index, slot))
    return np.int64(keys.size)


@kernel(types.UniTuple(types.int64, 2)(INDEX, OLD_ROWS, read(U64), read(U16)), for_=SAVING)
def count_changing(index, old, keys, tables):
    """Return how many rows of (key, table) would have to be copied, and how many have no row."""
    known, unknown = 0, 0
    for start in range(np.uint64(0), np.uint64(keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(keys.size))
        seek(index, keys, start, stop)
        for i in range(start, stop):
            slot = confirm_slot(index, keys[i], tables[i], i - start)
            if slot == NOWHERE:
                unknown += 1
            elif must_save(old, row_at(index, slot)):
                known += 1
    return known, unknown


class Listed(NamedTuple):
    """Memory for the rows of some partitions, in no particular order; all arrays have the same length."""

    keys: NDArray[np.uint64]
    tables: NDArray[np.uint16]
    last_used: NDArray[np.uint32]
    uses: NDArray[np.uint32]
    sources: NDArray[np.int64]
    """The position of each row's words: row number, or -1 - cell for copied rows."""


LISTED = types.NamedTuple((write(U64), write(U16), write(U32), write(U32), write(I64)), Listed)


@kernel(types.int64(INDEX, OLD_ROWS, U64, U64, LISTED), for_=SAVING)
def list_rows(index, old, first, last, listed):
    """List the rows of the snapshot in the partitions [first, last), counted from the server's own first one.

    `listed` must have space for one more than all rows of the partitions. Return the number of rows listed. All of them
    count as saved, and the cells of copied rows are free: the caller must take their values before the store changes.
    """
    count, size = 0, _list_slots(index, first * index.size, last * index.size, np.uint32(old.counts[2]), listed)
    for i in range(size):
        if i + AHEAD < size:
            _prefetch_facts(index, old, np.uint64(listed.sources[i + AHEAD]))
        row = listed.sources[i]
        if must_save(old, row):
            old.saved[row] = 1
            old.counts[1] -= 1
            uses = index.uses[row] if index.uses.size else np.uint32(0)
            count = _list(listed, count, listed.keys[i], index.tables[row], listed.last_used[i], uses, row)
    for partition in range(first, last):
        cell = old.heads[partition]
        old.heads[partition] = NONE
        while cell != NONE:
            last_used, uses = old.last_used[cell], old.uses[cell]
            count = _list(listed, count, old.keys[cell], old.tables[cell], last_used, uses, -1 - cell)
            old.free[old.counts[0]] = cell
            old.counts[0] += 1
            cell = old.following[cell]
    return count


@inlined
def _list_slots(index, first, last, since, listed):
    """List key, last use and row of the slots of the buckets [first, last) used since a step; return their number."""
    # Empty slots are written too, and overwritten by the next one: a branch on emptiness is mispredicted too often,
    # which takes longer than the write.
    size = np.uint64(0)
    for bucket in range(first, last):
        newest = np.uint32(0)
        for slot in range(bucket * np.uint64(SLOTS), (bucket + np.uint64(1)) * np.uint64(SLOTS)):
            newest = max(newest, index.marks[last_used_word(slot)])
        if newest < since:  # of most buckets of a cut nothing else is read
            continue
        for slot in range(bucket * np.uint64(SLOTS), (bucket + np.uint64(1)) * np.uint64(SLOTS)):
            row = row_at(index, slot)
            listed.keys[size] = index.buckets[bucket * KEYS + (slot & np.uint64(3))]
            listed.last_used[size] = index.marks[last_used_word(slot)]
            listed.sources[size] = row
            size += np.uint64(row >= 0) & np.uint64(listed.last_used[size] >= since)
    return size


@inlined
def _prefetch_facts(index, old, row):
    """Start to load the data of a row outside its bucket."""
    prefetch_to_l2(old.saved, row)
    prefetch_to_l2(index.tables, row)
    if index.uses.size:
        prefetch_to_l2(index.uses, row)


@inlined
def _list(listed, count, key, table, last_used, uses, source):
    """List a row at position `count`; return the next position."""
    listed.keys[count], listed.tables[count] = key, table
    listed.last_used[count], listed.uses[count], listed.sources[count] = last_used, uses, source
    return count + 1


@kernel(types.void(LISTED, I64, LISTED, write(I64)), for_=SAVING)
def order_rows(listed, size, ordered, starts):
    """Write the first `size` rows of a list to another one, ordered by key, then table number.

    `starts`, int64 of at least 2, is scratch memory: the more it has, the faster the sort.
    """
    # Keys are hashes, so they are spread evenly between the lowest and the highest. The range is divided into equal
    # parts; rows are distributed by part, and the few rows of a part sorted by insertion. That takes a third of the
    # time of a general sort. Keys of any other kind are ordered as well, but slowly.
    if size == 0:
        return
    low = high = listed.keys[0]
    for i in range(size):
        low, high = min(low, listed.keys[i]), max(high, listed.keys[i])
    shift = np.uint64(0)
    while (high - low) >> shift >= np.uint64(starts.size):
        shift += np.uint64(1)
    starts[:] = 0
    for i in range(size):
        starts[(listed.keys[i] - low) >> shift] += 1
    at = 0
    for part in range(starts.size):
        rows = starts[part]
        starts[part] = at
        at += rows
    for i in range(size):
        part = (listed.keys[i] - low) >> shift
        to = starts[part]
        starts[part] = to + 1
        _copy_facts(listed, i, ordered, to)
    for i in range(1, size):
        if _is_before(ordered.keys[i], ordered.tables[i], ordered, i - 1):
            _insert_in_order(ordered, i)


@inlined
def _copy_facts(source, i, target, to):
    target.keys[to], target.tables[to] = source.keys[i], source.tables[i]
    target.last_used[to], target.uses[to], target.sources[to] = source.last_used[i], source.uses[i], source.sources[i]


@inlined
def _is_before(key, table, rows, i):
    """Return whether a row comes before row `i`."""
    return key < rows.keys[i] or (key == rows.keys[i] and table < rows.tables[i])


@inlined
def _insert_in_order(rows, i):
    """Move row `i` to its position among those before it, which are in order."""
    key, table, last_used, uses, source = rows.keys[i], rows.tables[i], rows.last_used[i], rows.uses[i], rows.sources[i]
    to = i
    while to > 0 and _is_before(key, table, rows, to - 1):
        _copy_facts(rows, to - 1, rows, to)
        to -= 1
    rows.keys[to], rows.tables[to] = key, table
    rows.last_used[to], rows.uses[to], rows.sources[to] = last_used, uses, source


@kernel(types.void(ROWS, OLD_ROWS, read(I64), read(I64), write(F32)), for_=SAVING)
def copy_rows(rows, old, sources, states, values):
    """Copy rows, as float32, from their `sources`: all embeddings, then for each state all its values.

    `states` has the columns of each of the optimizer's states; the size of `values` is n * (dim + columns).
    """
    copied = RowArena(old.words, rows.width, rows.dim, rows.state_at, rows.storage, rows.line)
    size = np.uint64(sources.size)
    one_line = rows.storage == FLOAT32 and rows.dim == LANES
    if one_line and rows.width == TWO * LANES and states.size == 1 and states[0] == np.int64(LANES):
        # The most common rows, those of dim 16 with a state of as many columns: two cache lines and no loop.
        for i in range(size):
            if i + NEAR < size and sources[i + NEAR] >= 0:
                at = np.uint64(sources[i + NEAR]) * TWO * LANES
                prefetch_to_l2(rows.arena, at)
                prefetch_to_l2(rows.arena, at + LINE)
            if sources[i] >= 0:
                _copy_two_lines(rows.arena, np.uint64(sources[i]) * TWO * LANES, values, i, size)
            else:
                _copy_two_lines(old.words, np.uint64(-1 - sources[i]) * TWO * LANES, values, i, size)
        return
    for i in range(size):
        if i + AHEAD < size and sources[i + AHEAD] >= 0:
            at = np.uint64(sources[i + AHEAD]) * rows.width
            for word in range(ZERO, rows.width, LINE):
                prefetch_to_l2(rows.arena, at + word)
        if sources[i] >= 0:
            _copy_values(rows, np.uint64(sources[i]) * rows.width, states, values, i, size)
        else:
            _copy_values(copied, np.uint64(-1 - sources[i]) * rows.width, states, values, i, size)


@inlined
def _copy_two_lines(words, at, values, i, size):
    """Copy the row that begins at word `at`, whose embedding and state are a cache line each, as row `i` of `size`."""
    store(values, i * LANES, load(words, at, 16), 16)
    store(values, (size + i) * LANES, load(words, at + LANES, 16), 16)


@inlined
def _copy_values(rows, at, states, values, i, size):
    """Copy the row that begins at word `at` as row `i` of `size`."""
    to = i * rows.dim
    for column in range(ZERO, rows.dim, LANES):
        lanes = np.int64(rows.dim - column)
        store(values, to + column, embedding_lanes(rows, at, column, lanes), lanes)
    start, state_at = size * rows.dim, at + rows.state_at
    for state in range(states.size):
        columns = np.uint64(states[state])
        copy_words(rows.arena, state_at, values, start + i * columns, columns)
        start += size * columns
        state_at += columns
