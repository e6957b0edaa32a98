"""Ids to keys and back, and the initial values of new rows.

A key is an invertible 64-bit mix of (id xor the table's salt). The mix is the finalizer of splitmix64 (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", 2014); initial values are its counter-based form.
"""

import numpy as np
from numba import njit, types

from persia_cli.kernels.compile import kernel, read, write

F32, U16, U32, U64, I64 = types.float32, types.uint16, types.uint32, types.uint64, types.int64
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


@kernel(
    types.boolean(
        read(U64), read(U32), I64, read(I64), read(U64), read(U16), write(U64), write(U16), write(U32)
    )
)  # fmt: skip
def hash_features(ids, offsets, size, features, salts, tables, keys, key_tables, key_offsets):
    """Lay the ids of some features of a feature-major batch of `size` samples side by side, as keys.

    features holds positions in the batch; salts and tables are those of each feature. Returns True when every
    sample has exactly one id of each of them.
    """
    to = np.uint64(0)
    single = True
    key_offsets[0] = 0
    for f in range(features.size):
        salt, table = salts[f], tables[f]
        first = features[f] * size
        for sample in range(size):
            start, stop = np.uint64(offsets[first + sample]), np.uint64(offsets[first + sample + 1])
            for i in range(start, stop):
                keys[to] = _mix(ids[i] ^ salt)
                key_tables[to] = table
                to += np.uint64(1)
            single &= stop == start + np.uint64(1)
            key_offsets[f * size + sample + 1] = to
    return single


@kernel(
    types.void(
        write(F32), I64, I64, I64, read(I64), read(I64), read(U64), read(U16), U64, read(U64), read(F32), F32
    )
)  # fmt: skip
def fill_new_rows(arena, width, dim, states, positions, rows, keys, tables, seed, salts, bounds, state_value):
    """Write initial values into the rows of the look-up's entries at `positions`.

    Column c of an id's embedding is uniform in [-bound, bound) with 24 random bits, a function of (seed, the table's
    salt, id, c) alone; the `states` optimizer states of dim columns start at `state_value`; padding is zero.
    """
    columns, stop, end = np.uint64(dim), np.uint64((1 + states) * dim), np.uint64(width)
    for i in range(positions.size):
        position = positions[i]
        table = tables[position]
        salt = salts[table]
        start = _mix(_mix(_mix(seed) ^ salt) ^ _unmix(keys[position]) ^ salt)
        scale = bounds[table] * np.float32(2.0**-23)
        row = np.uint64(rows[position]) * end
        for c in range(columns):
            bits = np.int32(_mix(start + (c + np.uint64(1)) * GOLDEN) >> np.uint64(40))
            arena[row + c] = np.float32(bits - np.int32(2**23)) * scale
        for c in range(columns, stop):
            arena[row + c] = state_value
        for c in range(stop, end):
            arena[row + c] = 0.0
