"""The conversion of ids to keys and back, and the offsets that go with them.

A key is the finalizer of splitmix64 (see `splitmix`), which can be inverted, of (id xor the table's salt).
"""

import numpy as np
from numba import njit, types

from persia_cli.kernels.rows.splitmix import FIRST, GOLDEN, SECOND, mix64
from persia_cli.kernels.toolchain.compile import kernel, read, write
from persia_cli.kernels.toolchain.needs import SAVING, WORKER

U16, U32, U64, I64 = types.uint16, types.uint32, types.uint64, types.int64
FIRST_INVERSE, SECOND_INVERSE = np.uint64(pow(int(FIRST), -1, 2**64)), np.uint64(pow(int(SECOND), -1, 2**64))


mix = njit(inline="always")(mix64)
"""`mix64` of one uint64, inlined into kernels."""


@njit(inline="always")
def unmix(x):
    """Return the inverse of `mix`."""
    x = (x ^ (x >> np.uint64(31)) ^ (x >> np.uint64(62))) * SECOND_INVERSE
    x = (x ^ (x >> np.uint64(27)) ^ (x >> np.uint64(54))) * FIRST_INVERSE
    return x ^ (x >> np.uint64(30)) ^ (x >> np.uint64(60))


@kernel(types.void(read(U64), read(U16), read(U64), write(U64)))
def hash_ids(ids, tables, salts, keys):
    """Write the key of each id; `salts` is indexed by table number."""
    for i in range(ids.size):
        keys[i] = mix(ids[i] ^ salts[tables[i]])


@kernel(types.void(read(U64), read(U16), read(U64), write(U64)), for_=SAVING)
def recover_ids(keys, tables, salts, ids):
    """Undo `hash_ids`."""
    for i in range(keys.size):
        ids[i] = unmix(keys[i]) ^ salts[tables[i]]


@njit(inline="always")
def keys_of_id(id_, salt, rounds, size, keys, to):
    """Write the keys of an id's rows from keys[to] on; return the position behind the last one.

    With rounds 0, each id has one row. Otherwise the table is a hash stack: each round has `size` separate rows (at
    most 2^32), a hash picks one of them for the id, and the sum of the picked rows is the id's embedding.
    """
    one, high = np.uint64(1), np.uint64(32)
    if rounds == 0:
        keys[to] = mix(id_ ^ salt)
        return to + one
    for r in range(np.uint64(rounds)):
        chance = mix(id_ + (r + one) * GOLDEN) >> high
        keys[to + r] = mix((r * size + (chance * size >> high)) ^ salt)
    return to + np.uint64(rounds)


@kernel(types.boolean(read(U32), I64, write(types.boolean)), for_=WORKER)
def check_offsets(offsets, size, single):
    """Return True if the CSR offsets of features of `size` samples never decrease.

    Set single[f] to True if every sample has exactly one id of feature f.
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
def rebase_offsets(offsets, size, features, rows, rebased):
    """Write the CSR offsets of some features of a batch of `size` samples; an id of the f-th has rows[f] entries."""
    to, end = np.uint64(1), np.uint32(0)
    rebased[0] = 0
    for f in range(features.size):
        first = np.uint64(features[f] * size)
        shift, factor, begin = offsets[first], np.uint32(rows[f]), end
        for sample in range(np.uint64(size)):
            end = begin + (offsets[first + sample + np.uint64(1)] - shift) * factor
            rebased[to + sample] = end
        to += np.uint64(size)
