"""Unique keys of a batch, their order by server, and sums per unique key.

A scratch table finds the number of a key: 2^k words, epoch << 32 | number, at the key's low bits or in the slots
behind. A word of another epoch is a free slot, so that nothing is ever cleared; the key itself is compared where it was
written, among the unique keys. There are at least twice as many slots as an epoch has keys.
"""

import numpy as np
from numba import njit, types

from persia_cli.kernels.compile import kernel, read, write
from persia_cli.kernels.hashing import keys_of_id
from persia_cli.kernels.intrinsics import prefetch
from persia_cli.kernels.simd import LANES, load, store

F32, U16, U32, U64, I32, I64 = types.float32, types.uint16, types.uint32, types.uint64, types.int32, types.int64
CHUNK = 64
"""Ids whose slots are asked for ahead of being read."""
AHEAD = 16
"""Rows whose memory is asked for ahead of being changed."""
ONE, HIGH, LOW = np.uint64(1), np.uint64(32), np.uint64(2**32 - 1)


@njit(inline="always")
def _number(key, table, one_table, scratch, mask, epoch, unique_keys, unique_tables, count):
    """Return the number of (key, table): `count` if it is new, and then it is written behind the others.

    `one_table` says that all keys of the epoch are of one table.
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
    """Number the distinct (key, table) in order of first appearance; returns how many there are.

    The first `count` entries of unique_keys and unique_tables are written, and the number of each key to `inverse`.
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
    """Number the distinct keys of some features' ids, feature after feature; returns how many there are.

    Feature f has ids[firsts[f]:lasts[f]] of a table with salt, rounds and size (see `hashing.keys_of_id`); entries of
    `inverse` from starts[f] on are its keys' numbers. Features of one table have an epoch of their own, and use the
    first masks[f] + 1 slots of the scratch table: it stays in the cache. `keys` has room for CHUNK ids' keys.
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
    """Renumber unique keys by server, keeping their order within one; rewrites `inverse` to match.

    `owners` is the server of each partition; unique keys of server s end up in [bounds[s], bounds[s + 1]). `place`
    [keys] is scratch: where each key goes.
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
    # bounds[s + 1] is where server s begins; filling moves it to where it ends.
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
