"""The index of frozen tables: made in one pass over sorted keys, and read from a mapped file.

A bucket is one cache line of eight uint64 words. Word 0 is the row number of the bucket's first key times 8, plus the
number of its keys; then come up to seven keys, ascending. Rows are numbered in the order of their keys, so a key's row
is that of the first key plus its place. Each table has buckets of its own.

The high 32 bits of a key choose its home among the first `homes` buckets of its table, so homes ascend with keys. A key
lies in its home, or in a later bucket if all from there on were full. So a bucket that is not full, or has a greater
key, ends the search.
"""

import numpy as np
from numba import types

from persia_cli.kernels.table.buckets import match_four
from persia_cli.kernels.toolchain.compile import inlined, kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import lowest_bit, prefetch

U64, I64 = types.uint64, types.int64
WORDS = 8
"""uint64 words of a bucket."""
KEYS = 7
"""Keys of a full bucket."""
ONE, TWO, SHIFT, FOUR, COUNT, HIGH = (np.uint64(number) for number in (1, 2, 3, 4, 7, 32))
BUCKET = np.uint64(WORDS)
ABSENT = np.int64(-1)


@kernel(types.int64(read(U64), U64, U64, I64, I64, write(U64)))
def fill_buckets(keys, homes, buckets, first, last, words):
    """Add ascending keys of one table, whose first one has row `first`; return the bucket of the last one.

    `words` are those of the table's buckets. `last` is the result of the call for the keys before, -1 at first; the
    last call has no keys and closes the table. Return -2 if keys do not ascend, or if the buckets do not suffice.
    """
    bucket, row = last, np.uint64(first)
    if bucket < 0:
        bucket = 0
        words[0] = row << SHIFT
    for i in range(keys.size):
        home = np.int64(((keys[i] >> HIGH) * homes) >> HIGH)
        at = np.uint64(bucket) * BUCKET
        full = words[at] & COUNT == np.uint64(KEYS)
        if words[at] & COUNT and words[at + (words[at] & COUNT)] >= keys[i]:
            return -2
        target = max(home, bucket + 1 if full else bucket)
        if target >= np.int64(buckets):
            return -2
        while bucket < target:
            bucket += 1
            words[np.uint64(bucket) * BUCKET] = row << SHIFT
        at = np.uint64(bucket) * BUCKET
        words[at] += ONE
        words[at + (words[at] & COUNT)] = keys[i]
        row += ONE
    if not keys.size:
        while bucket + 1 < np.int64(buckets):
            bucket += 1
            words[np.uint64(bucket) * BUCKET] = row << SHIFT
    return bucket


@inlined
def home_of(key, first, homes):
    """Return the first word of a key's home, for a table whose buckets begin with bucket `first`."""
    return (first + (((key >> HIGH) * homes) >> HIGH)) * BUCKET


@inlined
def fetch_home(words, key, first, homes):
    """Start to load a key's home."""
    prefetch(words, home_of(key, first, homes))


@inlined
def row_of(words, key, first, homes, buckets):
    """Return the row of a key, -1 if there is none; the table has `buckets` buckets from bucket `first` on."""
    at, end = home_of(key, first, homes), (first + buckets) * BUCKET
    while at < end:
        head = words[at]
        count = head & COUNT
        equal = match_four(words, at, key) | match_four(words, at + FOUR, key) << FOUR
        # Bit 0 is the head's, and words behind the last key may have any value.
        equal &= (TWO << count) - TWO
        if equal:
            return np.int64((head >> SHIFT) + lowest_bit(equal) - ONE)
        if count < np.uint64(KEYS) or words[at + np.uint64(KEYS)] > key:
            return ABSENT
        at += BUCKET
    return ABSENT
