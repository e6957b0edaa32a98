"""The index of a row store: where the row of a (key, table) lies.

A bucket is one cache line: four keys (uint64), four rows (uint32, row + 1, 0 for an empty slot), four scores (uint32,
the step of last use). A key's high 32 bits choose its partition, which has buckets of its own, so that what happens in
one partition never touches another. In it the key has two candidate buckets; it lies in the second only if the first
was full when it came. Slots are never emptied, only reused: a first bucket that is not full settles that a key of no
slot of it is unknown.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from persia_cli.kernels.compile import helper, inlined, write
from persia_cli.kernels.intrinsics import prefetch

U8, U16, U32, U64, I32 = types.uint8, types.uint16, types.uint32, types.uint64, types.int32
SLOTS = 4
KEYS = np.uint64(8)
"""uint64 words of a bucket; the keys come first."""
ROWS, SCORES, MARKS = np.uint64(8), np.uint64(12), np.uint64(16)
"""uint32 words of a bucket before its rows, before its scores, and in all."""
NOWHERE = np.uint64(2**64 - 1)
CHUNK = 128
"""Keys whose memory is asked for before the first of them is looked at."""
PATHS = 256
"""Buckets looked at to make room in a full one."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Index(NamedTuple):
    """What kernels know of the rows of one group on one server."""

    buckets: NDArray[np.uint64]
    """uint64[8 * buckets]; see above."""
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
    """Whether rows are of more than one table."""
    scratch: NDArray[np.uint64]
    """uint64[SCRATCH] to work in."""


SCRATCH = 2 * max(CHUNK, PATHS)
INDEX = types.NamedTuple(
    (write(U64), write(U32), write(U16), write(U8), write(I32), U64, U64, U64, types.boolean, write(U64)), Index
)


@intrinsic
def _match(typing_context, buckets, at, key):
    """Bit s is set where buckets[at + s] equals the key, s in 0..3."""

    def generate(context, builder, signature, arguments):
        four, word = ir.VectorType(ir.IntType(64), SLOTS), ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        keys = builder.load(builder.bitcast(builder.gep(data, [arguments[1]]), ir.PointerType(four)))
        keys.align = 8
        nothing = ir.Constant(four, ir.Undefined)
        lane = builder.insert_element(nothing, arguments[2], word(0))
        wanted = builder.shuffle_vector(lane, nothing, ir.Constant(ir.VectorType(word, SLOTS), [0] * SLOTS))
        return builder.zext(
            builder.bitcast(builder.icmp_unsigned("==", keys, wanted), ir.IntType(SLOTS)), ir.IntType(64)
        )

    return types.uint64(buckets, types.uint64, types.uint64), generate


@intrinsic
def _occupied(typing_context, marks, at):
    """Bit s is set where marks[at + s] is not 0, s in 0..3."""

    def generate(context, builder, signature, arguments):
        four = ir.VectorType(ir.IntType(32), SLOTS)
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        rows = builder.load(builder.bitcast(builder.gep(data, [arguments[1]]), ir.PointerType(four)))
        rows.align = 4
        bits = builder.bitcast(builder.icmp_unsigned("!=", rows, four(None)), ir.IntType(SLOTS))
        return builder.zext(bits, ir.IntType(64))

    return types.uint64(marks, types.uint64), generate


@intrinsic
def lowest_bit(typing_context, bits):
    """Number of the lowest bit that is set; bits is not 0."""

    def generate(context, builder, signature, arguments):
        word, flag = ir.IntType(64), ir.IntType(1)
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(word, [word, flag]), "llvm.cttz.i64")
        return builder.call(function, [arguments[0], flag(1)])

    return types.uint64(types.uint64), generate


@inlined
def partition_of(index, key):
    """Place of a key's partition among the server's own."""
    return (((key >> np.uint64(32)) * index.partitions) >> np.uint64(32)) - index.first


@inlined
def first_bucket(index, key):
    """The bucket a key lies in unless it was full."""
    low = key & np.uint64(2**32 - 1)
    return partition_of(index, key) * index.size + ((low * index.size) >> np.uint64(32))


@inlined
def second_bucket(index, key, first):
    """The other candidate of a key, in the same partition."""
    start = partition_of(index, key) * index.size
    other = (((key * GOLDEN) >> np.uint64(32)) * (index.size - np.uint64(1))) >> np.uint64(32)
    place = first - start + np.uint64(1) + other
    return start + (place - index.size if place >= index.size else place)


@inlined
def taken(index, bucket):
    """Bits of the bucket's slots that hold a key."""
    return _occupied(index.marks, bucket * MARKS + ROWS)


@inlined
def matches(index, bucket, key):
    """Bits of the bucket's slots that hold the key, of whatever table."""
    return _match(index.buckets, bucket * KEYS, key) & taken(index, bucket)


@inlined
def row_at(index, slot):
    """Row of a slot (bucket * 4 + place), -1 if it is empty."""
    return np.int64(index.marks[(slot >> np.uint64(2)) * MARKS + ROWS + (slot & np.uint64(3))]) - 1


@inlined
def score_word(slot):
    """Where the score of a slot lies in the marks."""
    return (slot >> np.uint64(2)) * MARKS + SCORES + (slot & np.uint64(3))


@inlined
def _slot_in(index, bucket, key, table):
    """The bucket's slot of (key, table), or NOWHERE."""
    bits = matches(index, bucket, key)
    while bits != np.uint64(0):
        slot = bucket * np.uint64(SLOTS) + lowest_bit(bits)
        if not index.several or index.tables[row_at(index, slot)] == table:
            return slot
        bits &= bits - np.uint64(1)
    return NOWHERE


@helper
def slot_of(index, key, table, bucket):
    """The slot of (key, table) whose first bucket is given, or NOWHERE."""
    slot = _slot_in(index, bucket, key, table)
    if slot == NOWHERE and taken(index, bucket) == np.uint64(15):
        slot = _slot_in(index, second_bucket(index, key, bucket), key, table)
    return slot


@inlined
def seek(index, keys, start, stop):
    """Write the slots that keys[start:stop] most likely have to the scratch memory, NOWHERE for none.

    First the buckets of all are asked for, then looked at: their memory comes while that of others is asked for.
    """
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
def settle(index, key, table, place):
    """The slot of (key, table), or NOWHERE, given what `seek` wrote at a place of the scratch memory."""
    slot = index.scratch[place]
    if slot != NOWHERE and (not index.several or index.tables[row_at(index, slot)] == table):
        return slot
    return slot_of(index, key, table, first_bucket(index, key))


@inlined
def touch(index, slot, step):
    """Raise a slot's score to a step."""
    word = score_word(slot)
    index.marks[word] = max(index.marks[word], step)
