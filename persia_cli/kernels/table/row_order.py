"""The order of the rows in a file: by key, then table number."""

import numpy as np
from numba import types

from persia_cli.kernels.table.old_rows import LISTED
from persia_cli.kernels.toolchain.compile import inlined, kernel, write
from persia_cli.kernels.toolchain.needs import SAVING

I64, U64 = types.int64, types.uint64


@kernel(types.void(LISTED, I64, LISTED, write(I64)), for_=SAVING)
def order_rows(listed, size, ordered, starts):
    """Write the first `size` rows of a list to another one, ordered by key, then table number.

    `starts`, int64 of at least 2, is scratch memory: the more it has, the faster the sort.
    """
    # Keys are hashes, so they are spread evenly between the lowest and the highest. The range is divided into equal
    # parts; rows are placed by part, and the few rows of a part sorted by insertion. That takes a third of the time of
    # a general sort. Keys of any other kind are ordered as well, but slowly.
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
        place = starts[part]
        starts[part] = place + 1
        _copy(listed, i, ordered, place)
    for i in range(1, size):
        if _is_before(ordered.keys[i], ordered.tables[i], ordered, i - 1):
            _insert(ordered, i)


@inlined
def _copy(source, i, target, to):
    target.keys[to], target.tables[to] = source.keys[i], source.tables[i]
    target.last_used[to], target.uses[to], target.sources[to] = source.last_used[i], source.uses[i], source.sources[i]


@inlined
def _is_before(key, table, rows, i):
    """Return whether a row comes before row `i`."""
    return key < rows.keys[i] or (key == rows.keys[i] and table < rows.tables[i])


@inlined
def _insert(rows, i):
    """Move row `i` to its place among those before it, which are in order."""
    key, table, last_used, uses, source = rows.keys[i], rows.tables[i], rows.last_used[i], rows.uses[i], rows.sources[i]
    to = i
    while to > 0 and _is_before(key, table, rows, to - 1):
        _copy(rows, to - 1, rows, to)
        to -= 1
    rows.keys[to], rows.tables[to] = key, table
    rows.last_used[to], rows.uses[to], rows.sources[to] = last_used, uses, source
