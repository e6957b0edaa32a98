"""Unique keys of a batch, their order by server, and sums per unique key."""

import numpy as np
from numba import types

from persia_cli.kernels.compile import kernel, read, write
from persia_cli.kernels.intrinsics import prefetch

F32, U16, U64, I32, I64 = types.float32, types.uint16, types.uint64, types.int32, types.int64
CHUNK = 64
"""Keys whose memory is asked for ahead of being read."""


@kernel(types.int64(read(U64), read(U16), write(U64), U64, write(U64), write(U16), write(I32)))
def number_keys(keys, tables, scratch, epoch, unique_keys, unique_tables, inverse):
    """Number the distinct (key, table) in order of first appearance; returns how many there are.

    `scratch` has 2 * 2^k words with 2^k > keys.size: (key, epoch << 32 | number) per slot. A slot of an earlier epoch
    is free, so the table is never cleared. The first `count` entries of unique_keys and unique_tables are written.
    """
    mask = np.uint64(scratch.size // 2 - 1)
    one, high = np.uint64(1), np.uint64(32)
    number_mask = np.uint64(2**32 - 1)
    count = np.uint64(0)
    for first in range(0, keys.size, CHUNK):
        last = min(first + CHUNK, keys.size)
        for i in range(first, last):
            prefetch(scratch, (keys[i] & mask) << one)
        for i in range(first, last):
            key, table = keys[i], tables[i]
            slot = key & mask
            while True:
                word = scratch[(slot << one) + one]
                if word >> high != epoch:
                    scratch[slot << one] = key
                    scratch[(slot << one) + one] = epoch << high | count
                    unique_keys[count] = key
                    unique_tables[count] = table
                    inverse[i] = np.int32(count)
                    count += one
                    break
                if scratch[slot << one] == key and unique_tables[word & number_mask] == table:
                    inverse[i] = np.int32(word & number_mask)
                    break
                slot = (slot + one) & mask
    return np.int64(count)


@kernel(types.void(read(U64), read(U16), read(U16), write(I32), write(U64), write(U16), write(I64)))
def order_by_server(keys, tables, servers, inverse, ordered_keys, ordered_tables, bounds):
    """Renumber unique keys by server, keeping their order within one; rewrites `inverse` to match.

    `servers` is the owner of each partition; unique keys of server s end up in [bounds[s], bounds[s + 1]).
    """
    partitions = np.uint64(servers.size)
    for s in range(bounds.size):
        bounds[s] = 0
    for i in range(keys.size):
        bounds[servers[((keys[i] >> np.uint64(32)) * partitions) >> np.uint64(32)] + 1] += 1
    for s in range(1, bounds.size):
        bounds[s] += bounds[s - 1]
    place = np.empty(keys.size, np.int32)
    filled = np.zeros(bounds.size - 1, np.int64)
    for i in range(keys.size):
        server = servers[((keys[i] >> np.uint64(32)) * partitions) >> np.uint64(32)]
        to = bounds[server] + filled[server]
        filled[server] += 1
        place[i] = to
        ordered_keys[to] = keys[i]
        ordered_tables[to] = tables[i]
    for i in range(inverse.size):
        inverse[i] = place[inverse[i]]


@kernel(types.void(read(F32), read(I32), I64, write(F32)))
def add_rows(values, inverse, dim, sums):
    """Add row i of values (flat [n, dim]) to row inverse[i] of sums (flat [unique, dim]), in order."""
    columns = np.uint64(dim)
    for i in range(inverse.size):
        start, to = np.uint64(i) * columns, np.uint64(inverse[i]) * columns
        for c in range(columns):
            sums[to + c] += values[start + c]
