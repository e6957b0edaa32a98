"""The index of a row store: a cuckoo hash table from (key, table) to row number.

A bucket is one cache line of four slots: four keys (uint64), four rows (uint32: row + 1, 0 for an empty slot) and four
steps of last use (uint32). The high 32 bits of a key choose its partition. Each partition has its own buckets, so that
a change in one partition never touches another.

Within its partition a key has two candidate buckets. It lies in the second one only if the first was full when the key
was inserted. A full bucket stays full while such keys lie elsewhere. So if the first bucket has an empty slot and does
not hold the key, the key is unknown, and the second bucket need not be read. In a partition of few buckets, which fits
the cache, a key may lie in either bucket, and both are always read.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.table.journal import ENTRY_WORDS
from persia_cli.kernels.toolchain.compile import helper, inlined, write
from persia_cli.kernels.toolchain.intrinsics import ARRAY, I32, I64, address, instruction, lowest_bit, prefetch

U8, U16, U32, U64 = types.uint8, types.uint16, types.uint32, types.uint64
SLOTS = 4
KEYS = np.uint64(8)
"""uint64 words of a bucket; the keys come first."""
ROWS, LAST_USED, MARKS = np.uint64(8), np.uint64(12), np.uint64(16)
"""uint32 words of a bucket before its rows, before its steps of last use, and in all."""
NOWHERE = np.uint64(2**64 - 1)
CHUNK = 128
"""Number of keys whose buckets are prefetched before the first of them is read."""
FEW = np.uint64(64)
"""Maximum number of buckets of a partition that counts as having few."""
PATHS = 256
"""Maximum number of buckets that are searched to free a slot of a full bucket."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Index(NamedTuple):
    """The index of one feature group's rows on one server, as arrays for kernels."""

    buckets: NDArray[np.uint64]
    """uint64[8 * buckets]; see the module."""
    marks: NDArray[np.uint32]
    """The same memory as uint32."""
    tables: NDArray[np.uint16]
    """uint16[rows]: table number of each row."""
    reused: NDArray[np.uint8]
    """uint8[rows]: number of the look-up, modulo 256, that last gave the row to another key."""
    fill: NDArray[np.int32]
    """int32[partitions]: rows of each partition."""
    first: np.uint64
    """Number of the server's first partition."""
    partitions: np.uint64
    """Partitions over all servers."""
    size: np.uint64
    """Buckets of each partition, at least 2."""
    several: bool
    """True if the group has more than one table."""
    scratch: NDArray[np.uint64]
    """uint64[SCRATCH]: memory for intermediate results."""
    uses: NDArray[np.uint32]
    """uint32[rows]: frequency and last step of each row's look-ups (see `frequency`); empty if not needed."""
    sketch: NDArray[np.uint64]
    """uint64[8 * lines * own partitions]: frequencies of ids without a row; empty if not needed."""
    lines: np.uint64
    """Lines of the sketch of each partition."""
    epoch_bits: np.uint64
    """Counts are halved every 2^epoch_bits steps."""
    left: NDArray[np.uint64]
    """uint64[1 + 2 n]: the number of keys that may have left, then key and table number of the first n of them; empty
    where nothing has to be deleted elsewhere."""


ENTRY_AT = np.uint64(2 * max(CHUNK, PATHS))
"""First word of the scratch memory for an entry (`journal.Entry`)."""
SCRATCH = int(ENTRY_AT + ENTRY_WORDS)
INDEX = types.NamedTuple(
    (
        write(U64), write(U32), write(U16), write(U8), write(types.int32), U64, U64, U64, types.boolean, write(U64),
        write(U32), write(U64), U64, U64, write(U64),
    ),
    Index,
)  # fmt: skip


FOUR_KEYS, FOUR_ROWS = ir.VectorType(I64, SLOTS), ir.VectorType(I32, SLOTS)


def _as_bits(builder, four):
    """Return four truth values as the lowest bits of a uint64."""
    return builder.zext(builder.bitcast(four, ir.IntType(SLOTS)), I64)


@instruction(U64, ARRAY, U64, U64)
def match_four(builder, buckets, at, key):
    """Return a bit mask: bit s is set if buckets[at + s] equals the key, s in 0..3."""
    keys = builder.load(address(builder, buckets, at, FOUR_KEYS))
    keys.align = 8
    nothing = ir.Constant(FOUR_KEYS, ir.Undefined)
    first = builder.insert_element(nothing, key, I32(0))
    wanted = builder.shuffle_vector(first, nothing, FOUR_ROWS(None))
    return _as_bits(builder, builder.icmp_unsigned("==", keys, wanted))


@instruction(U64, ARRAY, U64)
def _occupied(builder, marks, at):
    """Return a bit mask: bit s is set if marks[at + s] is not 0, s in 0..3."""
    rows = builder.load(address(builder, marks, at, FOUR_ROWS))
    rows.align = 4
    return _as_bits(builder, builder.icmp_unsigned("!=", rows, FOUR_ROWS(None)))


@inlined
def partition_of(index, key):
    """Return the position of a key's partition among the server's own partitions."""
    return (((key >> np.uint64(32)) * index.partitions) >> np.uint64(32)) - index.first


@inlined
def first_bucket(index, key):
    """Return the first candidate bucket of a key."""
    low = key & np.uint64(2**32 - 1)
    return partition_of(index, key) * index.size + ((low * index.size) >> np.uint64(32))


@inlined
def second_bucket(index, key, first):
    """Return the second candidate bucket of a key, which is another one of the same partition."""
    start = partition_of(index, key) * index.size
    other = (((key * GOLDEN) >> np.uint64(32)) * (index.size - np.uint64(1))) >> np.uint64(32)
    offset = first - start + np.uint64(1) + other
    return start + (offset - index.size if offset >= index.size else offset)


@inlined
def taken(index, bucket):
    """Return the bit mask of the bucket's slots that hold a key."""
    return _occupied(index.marks, bucket * MARKS + ROWS)


@inlined
def matches(index, bucket, key):
    """Return the bit mask of the bucket's slots that hold the key, whatever its table."""
    return match_four(index.buckets, bucket * KEYS, key) & taken(index, bucket)


@inlined
def row_word(slot):
    """Return the position in `marks` of a slot's row."""
    return (slot >> np.uint64(2)) * MARKS + ROWS + (slot & np.uint64(3))


@inlined
def row_at(index, slot):
    """Return the row of a slot (bucket * 4 + place), -1 if it is empty."""
    return np.int64(index.marks[row_word(slot)]) - 1


@inlined
def last_used_word(slot):
    """Return the position in `marks` of a slot's step of last use."""
    return (slot >> np.uint64(2)) * MARKS + LAST_USED + (slot & np.uint64(3))


@inlined
def _slot_in(index, bucket, key, table):
    """Return the bucket's slot of (key, table), or NOWHERE."""
    bits = matches(index, bucket, key)
    while bits != np.uint64(0):
        slot = bucket * np.uint64(SLOTS) + lowest_bit(bits)
        if not index.several or index.tables[row_at(index, slot)] == table:
            return slot
        bits &= bits - np.uint64(1)
    return NOWHERE


@helper
def slot_of(index, key, table, bucket):
    """Return the slot of (key, table), or NOWHERE; `bucket` is the key's first candidate."""
    slot = _slot_in(index, bucket, key, table)
    if slot == NOWHERE and (index.size <= FEW or taken(index, bucket) == np.uint64(15)):
        slot = _slot_in(index, second_bucket(index, key, bucket), key, table)
    return slot


@inlined
def seek(index, keys, start, stop):
    """Write the likely slots of keys[start:stop] to the scratch memory, NOWHERE for none, for `confirm_slot`."""
    # All buckets are prefetched before the first one is read, so that the waits for memory overlap.
    for i in range(stop - start):
        bucket = first_bucket(index, keys[start + i])
        index.scratch[i] = bucket
        prefetch(index.buckets, bucket * KEYS)
    for i in range(stop - start):
        bucket, key, slot = index.scratch[i], keys[start + i], NOWHERE
        bits = matches(index, bucket, key)
        if bits != np.uint64(0):
            slot = bucket * np.uint64(SLOTS) + lowest_bit(bits)
            if index.several:
                prefetch(index.tables, np.uint64(row_at(index, slot)))
        elif taken(index, bucket) == np.uint64(15):
            prefetch(index.buckets, second_bucket(index, key, bucket) * KEYS)
        index.scratch[i] = slot


@inlined
def confirm_slot(index, key, table, position):
    """Return the slot of (key, table), or NOWHERE, given what `seek` wrote at a place of the scratch memory."""
    slot = index.scratch[position]
    if slot != NOWHERE and (not index.several or index.tables[row_at(index, slot)] == table):
        return slot
    return slot_of(index, key, table, first_bucket(index, key))


@inlined
def touch(index, slot, step):
    """Raise a slot's step of last use to `step`."""
    word = last_used_word(slot)
    index.marks[word] = max(index.marks[word], step)
