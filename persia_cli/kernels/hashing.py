"""Ids to keys and back, and the offsets that go with them.

A key is an invertible 64-bit mix of (id xor the table's salt). The mix is the finalizer of splitmix64 (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", 2014).
"""

import numpy as np
from numba import njit, types

from persia_cli.kernels.compile import kernel, read, write

U16, U32, U64, I64 = types.uint16, types.uint32, types.uint64, types.int64
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
FIRST_INVERSE, SECOND_INVERSE = np.uint64(pow(int(FIRST), -1, 2**64)), np.uint64(pow(int(SECOND), -1, 2**64))


@njit(inline="always")
def _mix(x):
    x = (x ^ (x >> np.uint64(30))) * FIRST
    x = (x ^ (x >> np.uint64(27))) * SECOND
    return x ^ (x >> np.uint64(31))


@njit(inline="always")
def _unmix(x):
    x = (x ^ (x >> np.uint64(31)) ^ (x >> np.uint64(62))) * SECOND_INVERSE
    x = (x ^ (x >> np.uint64(27)) ^ (x >> np.uint64(54))) * FIRST_INVERSE
    return x ^ (x >> np.uint64(30)) ^ (x >> np.uint64(60))


@kernel(types.void(read(U64), read(U16), read(U64), write(U64)))
def hash_ids(ids, tables, salts, keys):
    """Write the key of each id; `salts` is indexed by table number."""
    for i in range(ids.size):
        keys[i] = _mix(ids[i] ^ salts[tables[i]])


@kernel(types.void(read(U64), read(U16), read(U64), write(U64)))
def recover_ids(keys, tables, salts, ids):
    """Undo `hash_ids`."""
    for i in range(keys.size):
        ids[i] = _unmix(keys[i]) ^ salts[tables[i]]


@njit(inline="always")
def keys_of_id(id_, salt, rounds, size, keys, to):
    """Write the keys of an id's rows from keys[to] on; returns where they end.

    rounds 0: an id has a row of its own. Otherwise a hash stack: in round r the id falls by chance on one of `size`
    rows (at most 2^32) that this round has for itself, and stands for the sum of its rows.
    """
    one, high = np.uint64(1), np.uint64(32)
    if rounds == 0:
        keys[to] = _mix(id_ ^ salt)
        return to + one
    for r in range(np.uint64(rounds)):
        chance = _mix(id_ + (r + one) * GOLDEN) >> high
        keys[to + r] = _mix((r * size + (chance * size >> high)) ^ salt)
    return to + np.uint64(rounds)


@kernel(types.boolean(read(U32), I64, write(types.boolean)))
def check_offsets(offsets, size, single):
    """Return whether the CSR offsets of features of `size` samples never fall.

    `single` tells for each feature whether every sample has exactly one id.
    """
    falls = False
    for f in range(single.size):
        others = False
        for i in range(np.uint64(f * size), np.uint64((f + 1) * size)):
            start, stop = offsets[i], offsets[i + np.uint64(1)]
            falls |= stop < start
            others |= stop != start + np.uint32(1)
        single[f] = not others
    return not falls


@kernel(types.void(read(U32), I64, read(I64), read(I64), write(U32)))
def rebase_offsets(offsets, size, features, rows, own):
    """Write the CSR of some features of a batch of `size` samples: an id of the f-th has rows[f] entries."""
    to, end = np.uint64(1), np.uint32(0)
    own[0] = 0
    for f in range(features.size):
        first = np.uint64(features[f] * size)
        shift, factor, begin = offsets[first], np.uint32(rows[f]), end
        for sample in range(np.uint64(size)):
            end = begin + (offsets[first + sample + np.uint64(1)] - shift) * factor
            own[to + sample] = end
        to += np.uint64(size)
