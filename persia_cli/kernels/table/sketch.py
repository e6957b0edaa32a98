"""A count-min sketch: approximate counts of ids in bounded memory, with all counters of an id in one cache line.

(G. Cormode, S. Muthukrishnan, "An improved data stream summary: the count-min sketch and its applications", 2005.) A
count is never too low; it is too high if other ids share all four counters of an id. Counters stop at 255. Counts do
not depend on the order of ids.
"""

import numpy as np
from numba import types

from persia_cli.kernels.rows.hashing import mix
from persia_cli.kernels.toolchain.compile import inlined, kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import prefetch

U8, U64, BOOL = types.uint8, types.uint64, types.boolean
LINE = np.uint64(64)
"""Number of counters of a cache line; an id has one in each quarter of it."""
FULL = np.uint8(255)
AHEAD = np.uint64(16)


@inlined
def _line(key, lines):
    """Return the first counter of a key's cache line; there are at most 2^32 lines."""
    return ((key >> np.uint64(32)) * lines >> np.uint64(32)) * LINE


@inlined
def _counter(line, key, quarter):
    return line + np.uint64(16 * quarter) + ((key >> np.uint64(4 * quarter)) & np.uint64(15))


@kernel(types.void(read(U64), read(BOOL), U64, write(U8)))
def count_ids(ids, present, salt, sketch):
    """Count each id that is present; `salt` separates the ids of a table from those of other tables."""
    lines = np.uint64(sketch.size) // LINE
    for i in range(np.uint64(ids.size)):
        if i + AHEAD < np.uint64(ids.size):
            prefetch(sketch, _line(mix(ids[i + AHEAD] ^ salt), lines))
        if present[i]:
            key = mix(ids[i] ^ salt)
            line = _line(key, lines)
            for quarter in range(4):
                at = _counter(line, key, quarter)
                sketch[at] += np.uint8(sketch[at] != FULL)


@kernel(types.void(write(U64), read(BOOL), U64, read(U8), U8, U64))
def replace_rare_ids(ids, present, salt, sketch, least, rare):
    """Replace each id that was counted fewer than `least` times by `rare`."""
    lines = np.uint64(sketch.size) // LINE
    for i in range(np.uint64(ids.size)):
        if i + AHEAD < np.uint64(ids.size):
            prefetch(sketch, _line(mix(ids[i + AHEAD] ^ salt), lines))
        if present[i]:
            key = mix(ids[i] ^ salt)
            line = _line(key, lines)
            count = FULL
            for quarter in range(4):
                count = min(count, sketch[_counter(line, key, quarter)])
            if count < least:
                ids[i] = rare
