"""The unique keys of a batch, their order by server, and sums per unique key.

A scratch table maps a key to its number. It is an open-addressing hash table with linear probing: 2^k words of
epoch << 32 | number, at least twice as many as one epoch has keys. A word of another epoch counts as free. So the table
is never cleared: a new batch takes a new epoch, where clearing would cost more than numbering a small batch. A word has
no room for the key, so keys are compared in the array of unique keys.
"""

import numpy as np
from numba import njit, types

from persia_cli.kernels.compile import kernel, read, write
from persia_cli.kernels.hashing import keys_of_id
from persia_cli.kernels.intrinsics import prefetch
from persia_cli.kernels.simd import LANES, load, store

F32, U16, U32, U64, I32, I64 = types.float32, types.uint16, types.uint32, types.uint64, types.int32, types.int64
CHUNK = 64
"""Number of ids whose slots are prefetched before the first of them is read."""
AHEAD = 16
"""Number of rows between the one that is changed and the one that is prefetched."""
ONE, HIGH, LOW = np.uint64(1), np.uint64(32), np.uint64(2**32 - 1)


@njit(inline="always")
def _number(key, table, one_table, scratch, mask, epoch, unique_keys, unique_tables, count):
    """Return the number of (key, table): `count` if it is new; it is then appended to the unique keys.

    With `one_table`, all keys of the epoch belong to one table, and tables are not compared.
    """
    slot = key & mask
    while True:
        word = scratch[slot]
        if word >> HIGH != epoch:
            scratch[slot] = epoch << HIGH | count
            unique_keys[count] = key
            unique_tables[count] = table
            return count
        number = word & LOW
        if unique_keys[number] == key and (one_table or unique_tables[number] == table):
            return number
        slot = (slot + ONE) & mask


@kernel(types.int64(read(U64), read(U16), write(U64), U64, write(U64), write(U16), write(I32)))
def number_keys(keys, tables, scratch, epoch, unique_keys, unique_tables, inverse):
    """Number the distinct (key, table) pairs in order of first appearance; returns their count.

    Writes the first `count` entries of unique_keys and unique_tables, and the number of each key to `inverse`.
    """
    mask, count = np.uint64(scratch.size) - ONE, np.uint64(0)
    size = np.uint64(keys.size)
    for first in range(np.uint64(0), size, np.uint64(CHUNK)):
        last = min(first + np.uint64(CHUNK), size)
        for i in range(first, last):
            prefetch(scratch, keys[i] & mask)
        for i in range(first, last):
            number = _number(keys[i], tables[i], False, scratch, mask, epoch, unique_keys, unique_tables, count)
            inverse[i] = np.int32(number)
            if number == count:
                count += ONE
    return np.int64(count)


@kernel(
    types.int64(
        read(U64), read(I64), read(I64), read(I64), read(U16), read(U64), read(I64), read(U64), read(U64), read(U64),
        write(U64), write(U64), write(U64), write(U16), write(I32),
    )
)  # fmt: skip
def number_ids(
    ids, firsts, lasts, starts, tables, salts, rounds, sizes, epochs, masks,
    keys, scratch, unique_keys, unique_tables, inverse,
):  # fmt: skip
    """Number the distinct keys of some features' ids, feature after feature; returns their count.

    Feature f has ids[firsts[f]:lasts[f]] of a table with salt, rounds and size (see `hashing.keys_of_id`). The numbers
    of its keys go to `inverse` from starts[f] on. Features of one table share an epoch and use the first masks[f] + 1
    slots of the scratch table only, which therefore stay in the processor's cache. `keys` is scratch for CHUNK ids.
    """
    count = np.uint64(0)
    for f in range(firsts.size):
        table, salt, per_id, size = tables[f], salts[f], rounds[f], sizes[f]
        epoch, mask = epochs[f], masks[f]
        to, stop = np.uint64(starts[f]), np.uint64(lasts[f])
        for first in range(np.uint64(firsts[f]), stop, np.uint64(CHUNK)):
            filled = np.uint64(0)
            for i in range(first, min(first + np.uint64(CHUNK), stop)):
                filled = keys_of_id(ids[i], salt, per_id, size, keys, filled)
            for i in range(filled):
                prefetch(scratch, keys[i] & mask)
            for i in range(filled):
                number = _number(keys[i], table, True, scratch, mask, epoch, unique_keys, unique_tables, count)
                inverse[to] = np.int32(number)
                to += ONE
                if number == count:
                    count += ONE
    return np.int64(count)


@kernel(types.void(read(U64), read(U16), read(U16), write(I32), write(I32), write(U64), write(U16), write(I64)))
def order_by_server(keys, tables, owners, place, inverse, ordered_keys, ordered_tables, bounds):
    """Sort unique keys by server with a counting sort, which is stable, and renumber `inverse` to match.

    `owners` is the server of each partition. The keys of server s end up in [bounds[s], bounds[s + 1]). `place` [keys]
    is scratch: the new number of each key.
    """
    partitions, size = np.uint64(owners.size), np.uint64(keys.size)
    for s in range(bounds.size):
        bounds[s] = 0
    for i in range(size):
        server = owners[((keys[i] >> HIGH) * partitions) >> HIGH]
        place[i] = np.int32(server)
        if server + ONE < np.uint64(bounds.size - 1):
            bounds[server + np.uint64(2)] += 1
    for s in range(1, bounds.size):
        bounds[s] += bounds[s - 1]
    # Here bounds[s + 1] is the begin of server s. It grows by one with each key, so it ends as the end of server s.
    for i in range(size):
        end = np.uint64(place[i]) + ONE
        to = bounds[end]
        bounds[end] = to + 1
        place[i] = np.int32(to)
        ordered_keys[np.uint64(to)] = keys[i]
        ordered_tables[np.uint64(to)] = tables[i]
    for i in range(np.uint64(inverse.size)):
        inverse[i] = place[np.uint64(inverse[i])]


@kernel(types.void(read(F32), read(I32), I64, write(F32)))
def add_rows(values, inverse, dim, sums):
    """Add row i of values (flat [n, dim]) to row inverse[i] of sums (flat [unique, dim]), in order."""
    for i in range(inverse.size):
        if i + AHEAD < inverse.size:
            for c in range(0, dim, LANES):
                prefetch(sums, np.uint64(inverse[i + AHEAD] * dim + c))
        start, to = i * dim, inverse[i] * dim
        for c in range(0, dim, LANES):
            store(sums, to + c, load(sums, to + c, dim - c) + load(values, start + c, dim - c), dim - c)
