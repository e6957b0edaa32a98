"""Lines of sketches that have changed since a cut, as they were: `old_rows` for the counts of ids without a row.

A line is *settled* once it has been copied or kept. Only look-ups of ids that have no row change lines.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.buckets import CHUNK, INDEX, NOWHERE, partition_of, seek, settle
from persia_cli.kernels.compile import helper, kernel, read, write
from persia_cli.kernels.intrinsics import prefetch
from persia_cli.kernels.sightings import WORDS, line_of

U8, U16, U64, I64 = types.uint8, types.uint16, types.uint64, types.int64
NONE = -1
"""End of a chain of places."""


class OldLines(NamedTuple):
    """Room for lines as they were at the cut."""

    settled: NDArray[np.uint8]
    """uint8[lines]: 1 for lines that have been copied or kept."""
    words: NDArray[np.uint64]
    """uint64[8 * places]: the words of each line kept."""
    lines: NDArray[np.int64]
    """int64[places]: which line it is, counted from the server's own first one."""
    free: NDArray[np.int64]
    """int64[places]: the free places, the next one to take last."""
    counts: NDArray[np.int64]
    """int64[2]: number of these, and of the lines that are not settled."""
    heads: NDArray[np.int64]
    """int64[partitions]: place of the last line kept of each of the server's partitions, NONE without one."""
    following: NDArray[np.int64]
    """int64[places]: place of the line kept before of the same partition, or NONE."""


OLD_LINES = types.NamedTuple(
    (write(U8), write(U64), write(I64), write(I64), write(I64), write(I64), write(I64)), OldLines
)


@kernel(types.int64(INDEX, OLD_LINES, read(U64), read(U16), I64))
def keep_lines(index, old, keys, tables, first):
    """Keep the lines of those (key, table) from position `first` on that have no row: a look-up may change them.

    Returns the position of the first one that there is no free place for, or that of one beyond the last.
    """
    for start in range(np.uint64(first), np.uint64(keys.size), np.uint64(CHUNK)):
        stop = min(start + np.uint64(CHUNK), np.uint64(keys.size))
        seek(index, keys, start, stop)
        for i in range(start, stop):
            slot = settle(index, keys[i], tables[i], i - start)
            index.scratch[i - start] = slot
            if slot == NOWHERE:
                prefetch(old.settled, line_of(index, keys[i]) // WORDS)
                prefetch(index.sketch, line_of(index, keys[i]))
        for i in range(start, stop):
            if index.scratch[i - start] == NOWHERE and old.settled[line_of(index, keys[i]) // WORDS] == 0:
                if old.counts[0] == 0:
                    return np.int64(i)
                _keep_line(index, old, keys[i])
    return np.int64(keys.size)


@helper
def _keep_line(index, old, key):
    """Keep the line of a key as it is now; there must be a free place."""
    old.counts[0] -= 1
    old.counts[1] -= 1
    place, at, partition = old.free[old.counts[0]], line_of(index, key), partition_of(index, key)
    old.settled[at // WORDS] = 1
    old.lines[place] = at // WORDS
    old.following[place] = old.heads[partition]
    old.heads[partition] = place
    for word in range(WORDS):
        old.words[np.uint64(place) * WORDS + word] = index.sketch[at + word]


@kernel(types.void(INDEX, OLD_LINES, I64, I64, write(U64)))
def take_kept_lines(index, old, first, last, words):
    """Copy the lines that were kept of the partitions [first, last), counted from the server's own first one.

    `words`, uint64[8 * lines of these partitions], gets each at its place, and their places in the room are free.
    """
    begin = first * np.int64(index.lines)
    for partition in range(first, last):
        place = old.heads[partition]
        old.heads[partition] = NONE
        while place != NONE:
            at, to = np.uint64(place) * WORDS, np.uint64(old.lines[place] - begin) * WORDS
            for word in range(WORDS):
                words[to + word] = old.words[at + word]
            old.free[old.counts[0]] = place
            old.counts[0] += 1
            place = old.following[place]
