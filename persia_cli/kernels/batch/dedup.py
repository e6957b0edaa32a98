"""The unique keys of a batch, their order by server, and sums per unique key.

A scratch table maps a key to its number. It is an open-addressing hash table with linear probing: 2^k words of
epoch << 32 | number, at least twice as many as one epoch has keys. A word of another epoch counts as free. So the table
is never cleared: a new batch takes a new epoch, where clearing would cost more than numbering a small batch. A word has
no space for the key, so keys are compared in the array of unique keys. This halves the table, of which more then stays
in the cache.
"""

from typing import NamedTuple

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from persia_cli.kernels.rows.hashing import keys_of_id
from persia_cli.kernels.toolchain.compile import kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import prefetch
from persia_cli.kernels.toolchain.needs import WORKER
from persia_cli.kernels.toolchain.simd import LANES, load, store

F32, U16, U32, U64, I32, I64 = types.float32, types.uint16, types.uint32, types.uint64, types.int32, types.int64
CHUNK = 64
"""Number of ids whose slots are prefetched before the first of them is read."""
AHEAD = 16
"""Number of rows between the one that is changed and the one that is prefetched."""
ONE, HIGH, LOW = np.uint64(1), np.uint64(32), np.uint64(2**32 - 1)


class UniqueKeys(NamedTuple):
    """The scratch table, and the distinct keys found so far in order of first appearance, as arrays for kernels."""

    scratch: NDArray[np.uint64]
    """uint64[2^k]; see the module."""
    keys: NDArray[np.uint64]
    """uint64[n], long enough for all keys of a call."""
    tables: NDArray[np.uint16]
    """uint16[n]: table number of each key."""


class FeatureIds(NamedTuple):
    """The positions of some features' ids, and their conversion to keys; every array has one value per feature."""

    firsts: NDArray[np.int64]
    """The feature's ids are ids[first:last]."""
    lasts: NDArray[np.int64]
    starts: NDArray[np.int64]
    """First position of its keys in `inverse`."""
    tables: NDArray[np.uint16]
    """Number of its table."""
    salts: NDArray[np.uint64]
    """Salt, rounds and size of the table; see `hashing.keys_of_id`."""
    rounds: NDArray[np.int64]
    sizes: NDArray[np.uint64]
    epochs: NDArray[np.uint64]
    """Epoch of the scratch table; features of one table have the same."""
    masks: NDArray[np.uint64]
    """The first mask + 1 slots of the scratch table are used: few for small features, which then stay in the cache."""


UNIQUE_KEYS = types.NamedTuple((write(U64), write(U64), write(U16)), UniqueKeys)
FEATURE_IDS = types.NamedTuple(
    (write(I64), write(I64), write(I64), write(U16), write(U64), write(I64), write(U64), write(U64), write(U64)),
    FeatureIds,
)


@njit(inline="always")
def _number(unique, key, table, one_table, mask, epoch, count):
    """Return the number of (key, table): `count` if it is new; it is then appended to the unique keys.

    With `one_table`, all keys of the epoch belong to one table, and tables are not compared.
    """
    # Keys are hashed already (`hashing.mix`), so their low bits are as good as any hash of them.
    slot = key & mask
    while True:
        word = unique.scratch[slot]
        # An old epoch ends the search as an empty slot does: no key of this epoch was ever pushed past this slot.
        if word >> HIGH != epoch:
            unique.scratch[slot] = epoch << HIGH | count
            unique.keys[count] = key
            unique.tables[count] = table
            return count
        number = word & LOW
        if unique.keys[number] == key and (one_table or unique.tables[number] == table):
            return number
        slot = (slot + ONE) & mask


@kernel(types.int64(read(U64), read(U16), U64, UNIQUE_KEYS, write(I32)))
def number_keys(keys, tables, epoch, unique, inverse):
    """Number the distinct (key, table) pairs in order of first appearance; returns their count.

    Writes the first `count` of the unique keys, and the number of each key to `inverse`.
    """
    mask, count = np.uint64(unique.scratch.size) - ONE, np.uint64(0)
    size = np.uint64(keys.size)
    for first in range(np.uint64(0), size, np.uint64(CHUNK)):
        last = min(first + np.uint64(CHUNK), size)
        for i in range(first, last):
            prefetch(unique.scratch, keys[i] & mask)
        for i in range(first, last):
            number = _number(unique, keys[i], tables[i], False, mask, epoch, count)
            inverse[i] = np.int32(number)
            if number == count:
                count += ONE
    return np.int64(count)


@kernel(types.int64(read(U64), FEATURE_IDS, write(U64), UNIQUE_KEYS, write(I32)), for_=WORKER)
def number_ids(ids, features, keys, unique, inverse):
    """Number the distinct keys of some features' ids, feature after feature; returns their count.

    The numbers of a feature's keys go to `inverse`; `keys` is scratch for the keys of CHUNK ids.
    """
    # One epoch per table makes the table part of every comparison of epochs: keys alone are compared after that.
    count = np.uint64(0)
    for f in range(features.firsts.size):
        table, salt, per_id, size = features.tables[f], features.salts[f], features.rounds[f], features.sizes[f]
        epoch, mask = features.epochs[f], features.masks[f]
        to, stop = np.uint64(features.starts[f]), np.uint64(features.lasts[f])
        for first in range(np.uint64(features.firsts[f]), stop, np.uint64(CHUNK)):
            filled = np.uint64(0)
            for i in range(first, min(first + np.uint64(CHUNK), stop)):
                filled = keys_of_id(ids[i], salt, per_id, size, keys, filled)
            for i in range(filled):
                prefetch(unique.scratch, keys[i] & mask)
            for i in range(filled):
                number = _number(unique, keys[i], table, True, mask, epoch, count)
                inverse[to] = np.int32(number)
                to += ONE
                if number == count:
                    count += ONE
    return np.int64(count)


@kernel(
    types.void(read(U64), read(U16), read(U16), write(I32), write(I32), write(U64), write(U16), write(I64)), for_=WORKER
)
def order_by_server(keys, tables, owners, renumbered, inverse, ordered_keys, ordered_tables, bounds):
    """Sort unique keys by server with a counting sort, which is stable, and renumber `inverse` to match.

    `owners` is the server of each partition. The keys of server s end up in [bounds[s], bounds[s + 1]).
    `renumbered` [keys] is scratch: the new number of each key.
    """
    # Stable, so that keys keep the order of first appearance within a server: then new keys get their rows, and evict
    # others, in the same order for any number of servers.
    partitions, size = np.uint64(owners.size), np.uint64(keys.size)
    for s in range(bounds.size):
        bounds[s] = 0
    for i in range(size):
        server = owners[((keys[i] >> HIGH) * partitions) >> HIGH]
        renumbered[i] = np.int32(server)
        bounds[server + ONE] += 1
    begin = 0
    for s in range(1, bounds.size):
        begin, bounds[s] = begin + bounds[s], begin
    # Here bounds[s + 1] is the begin of server s. It grows by one with each key, so its last value is the end of server
    # s.
    for i in range(size):
        end = np.uint64(renumbered[i]) + ONE
        to = bounds[end]
        bounds[end] = to + 1
        renumbered[i] = np.int32(to)
        ordered_keys[np.uint64(to)] = keys[i]
        ordered_tables[np.uint64(to)] = tables[i]
    for i in range(np.uint64(inverse.size)):
        inverse[i] = renumbered[np.uint64(inverse[i])]


@kernel(types.void(read(F32), read(I32), I64, write(F32)))
def add_rows(values, inverse, dim, sums):
    """Add row i of values (flat [n, dim]) to row inverse[i] of sums (flat [unique, dim]), in order."""
    # In order, so that sums of floats have the same bits each time; so no two rows may be added at once.
    for i in range(inverse.size):
        if i + AHEAD < inverse.size:
            for c in range(0, dim, LANES):
                prefetch(sums, np.uint64(inverse[i + AHEAD] * dim + c))
        start, to = i * dim, inverse[i] * dim
        for c in range(0, dim, LANES):
            store(sums, to + c, load(sums, to + c, dim - c) + load(values, start + c, dim - c), dim - c)
