"""The rows of frozen tables: how a batch of ids reads them from a mapped file.

Rows that have changed since the file was written are in an overlay, which is asked first.

Values are bytes, row after row, in one of five formats. `int8` and `int4` have the layouts of FBGEMM: numbers q of 8
bits, or of 4 (the lower half of a byte first), then scale and bias, as float32 for int8 and as float16 for int4. A
value is q * scale + bias.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.rows.halves import load_bfloat16, load_float16
from persia_cli.kernels.rows.hashing import keys_of_id, mix, unmix
from persia_cli.kernels.rows.rows import CODES, ROWS, RowArena, begin_row, embedding_lanes
from persia_cli.kernels.serving.frozen_index import ABSENT, fetch_home, row_of
from persia_cli.kernels.table.new_keys import draw
from persia_cli.kernels.toolchain.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import prefetch
from persia_cli.kernels.toolchain.simd import load, load_scalar, store

U8, U16, U32, U64, I64, F32 = types.uint8, types.uint16, types.uint32, types.uint64, types.int64, types.float32
FLOAT32, BFLOAT16, FLOAT16, INT8, INT4 = 0, 1, 2, 3, 4
FORMS = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16, "int8": INT8, "int4": INT4}
ZERO, ONE, TWO, LANES = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(16)
OVERLAID = np.int64(-2)
"""A row at place p of the overlay has the number OVERLAID - p, so it is neither a row of the file nor `ABSENT`."""
BEYOND = np.int64(2**63 - 1)
"""The number of a row that an index names and no file has."""
LINE = np.uint64(64)
"""Bytes of a cache line."""
CHUNK = 64
"""Entries that are fetched at once, few enough for their rows to stay in the L1 cache."""


class FrozenFeatures(NamedTuple):
    """The features that read one file of rows, each with the data of its table; all arrays have an entry each."""

    feature: NDArray[np.int64]
    """The feature's position among those of a batch."""
    salt: NDArray[np.uint64]
    rounds: NDArray[np.int64]
    """Rows per id of a hash stack; 0 if each id has one row."""
    size: NDArray[np.uint64]
    """Rows of each round of a hash stack."""
    first_bucket: NDArray[np.uint64]
    homes: NDArray[np.uint64]
    buckets: NDArray[np.uint64]
    bound: NDArray[np.float32]
    """Initial values lie in [-bound, bound); negative where ids without a row are zeros."""
    admission: NDArray[np.uint64]
    """An id would get a row if its 24-bit draw is below this value."""
    substitute: NDArray[np.int64]
    """The row for ids without one; `ABSENT` if there is none."""


class Overlay(NamedTuple):
    """Rows that have changed since the file was written; all arrays are read-only.

    The i-th key of its index has the row places[i] of `values`, or none if that is negative: then it was deleted.
    """

    words: NDArray[np.uint64]
    places: NDArray[np.int64]
    values: NDArray[np.uint8]
    first_bucket: NDArray[np.uint64]
    """Of the table of each feature in the overlay's index."""
    homes: NDArray[np.uint64]
    buckets: NDArray[np.uint64]
    """0 for a table without changes."""


class Frozen(NamedTuple):
    """The common properties of the rows of one file, and memory for intermediate results."""

    dim: np.uint64
    stride: np.uint64
    """Bytes of a row."""
    total: np.uint64
    """Rows of the file."""
    form: int
    """One of `FORMS`."""
    seed: np.uint64
    """The training run's seed."""
    new: RowArena
    """One row in the format of training: ids without a row begin with values rounded to it. It has no states."""
    keys: NDArray[np.uint64]
    """uint64[n], n at least the rows per id: entries that are fetched before the first of them is read."""
    rows: NDArray[np.int64]
    """int64[n]."""
    pair: NDArray[np.float32]
    """float32[2]."""


def new_row(dim: int, dtype: str) -> RowArena:
    """Return the memory of a row of this dtype in training, without states."""
    arena, line = np.empty(dim + 2, np.float32), np.empty(dim, np.float32)
    return RowArena(arena, np.uint64(dim + 2), np.uint64(dim), np.uint64(dim + 2), CODES[dtype], line)


FEATURES = types.NamedTuple(
    (
        *(write(I64), write(U64), write(I64), write(U64), write(U64), write(U64), write(U64)),
        *(write(F32), write(U64), write(I64)),
    ),
    FrozenFeatures,
)
OVERLAY = types.NamedTuple((read(U64), read(I64), read(U8), read(U64), read(U64), read(U64)), Overlay)
FROZEN = types.NamedTuple((U64, U64, U64, I64, U64, ROWS, write(U64), write(I64), write(F32)), Frozen)


@kernel(
    I64(
        *(FROZEN, FEATURES, OVERLAY, read(U64), read(U8), read(U64), read(U32), U64, types.boolean),
        *(write(F32), write(I64)),
    )
)
def read_frozen(frozen, features, overlay, words, values, ids, offsets, size, by_sample, out, missing):
    """Write the embedding of each entry to out float32[entries * dim], feature by feature, in the order of ids.

    An id of a hash stack has one entry per round, any other has one. `words` are those of the index. `ids` and the
    feature-major CSR `offsets` are those of a batch of `size` samples. With `by_sample`, where each feature has one
    entry in every sample, all entries of a sample are adjacent instead. Add the entries of the f-th feature without a
    row to missing[f]. Return the number of entries whose row is beyond the file, which means that the index is damaged.
    """
    to, width, outside = ZERO, frozen.dim, 0
    if by_sample:
        width *= np.uint64(features.feature.size)
    for f in range(np.uint64(features.feature.size)):
        if by_sample:
            to = f * frozen.dim
        begin = offsets[np.uint64(features.feature[f]) * size]
        end = offsets[np.uint64(features.feature[f] + 1) * size]
        per_id = max(ONE, np.uint64(features.rounds[f]))
        step = np.uint64(frozen.keys.size) // per_id
        at = np.uint64(begin)
        while at < np.uint64(end):
            last = min(at + step, np.uint64(end))
            count = ZERO
            for i in range(at, last):
                count = keys_of_id(ids[i], features.salt[f], features.rounds[f], features.size[f], frozen.keys, count)
            outside += _find(frozen, features, overlay, f, words, values, count)
            for i in range(count):
                row = frozen.rows[i]
                if row == ABSENT:
                    missing[f] += 1
                    row = features.substitute[f]
                if row >= 0:
                    _decode(frozen, values, np.uint64(row) * frozen.stride, out, to)
                elif row <= OVERLAID:
                    _decode(frozen, overlay.values, np.uint64(OVERLAID - row) * frozen.stride, out, to)
                else:
                    _begin(frozen, features, f, frozen.keys[i], out, to)
                to += width
            at = last
    return outside


@kernel(types.void(FROZEN, FEATURES, OVERLAY, read(U64), U64, write(I64)))
def find_row(frozen, features, overlay, words, id_, rows):
    """Write the row of an id in the table of each feature to rows[f].

    `ABSENT` if it has none, or the table is a stack; `BEYOND` if it has one that is in no file.
    """
    for f in range(np.uint64(features.feature.size)):
        rows[f] = ABSENT
        if features.rounds[f] == 0:
            rows[f] = _number(frozen, features, overlay, f, words, mix(id_ ^ features.salt[f]))


@inlined
def _number(frozen, features, overlay, f, words, key):
    """Return the number of a key's row: of the file, or `OVERLAID` and less; else `ABSENT` or `BEYOND`."""
    if overlay.buckets[f] != ZERO:
        at = row_of(overlay.words, key, overlay.first_bucket[f], overlay.homes[f], overlay.buckets[f])
        if at >= 0:
            if at >= overlay.places.size:
                return BEYOND
            place = overlay.places[np.uint64(at)]
            if place < 0:
                return ABSENT
            if np.uint64(place) >= np.uint64(overlay.values.size) // frozen.stride:
                return BEYOND
            return OVERLAID - place
    row = row_of(words, key, features.first_bucket[f], features.homes[f], features.buckets[f])
    return BEYOND if row >= 0 and np.uint64(row) >= frozen.total else row


@inlined
def _find(frozen, features, overlay, f, words, values, count):
    """Find the rows of `count` keys of one feature, start to load them, and return how many are beyond the files."""
    first, homes = features.first_bucket[f], features.homes[f]
    outside = 0
    if overlay.buckets[f] != ZERO:
        for i in range(count):
            if i == ZERO or frozen.keys[i] != frozen.keys[i - ONE]:
                fetch_home(overlay.words, frozen.keys[i], overlay.first_bucket[f], overlay.homes[f])
    for i in range(count):
        if i == ZERO or frozen.keys[i] != frozen.keys[i - ONE]:
            fetch_home(words, frozen.keys[i], first, homes)
    for i in range(count):
        # A user's id occurs in each of the user's candidates.
        if i > ZERO and frozen.keys[i] == frozen.keys[i - ONE]:
            frozen.rows[i] = frozen.rows[i - ONE]
            continue
        row = _number(frozen, features, overlay, f, words, frozen.keys[i])
        if row == BEYOND:
            outside += 1
            row = ABSENT
        frozen.rows[i] = row
        if row >= 0:
            _fetch(values, np.uint64(row) * frozen.stride, frozen.stride)
        elif row <= OVERLAID:
            _fetch(overlay.values, np.uint64(OVERLAID - row) * frozen.stride, frozen.stride)
    return outside


@inlined
def _fetch(values, start, stride):
    """Start to load the row whose bytes begin at values[start]."""
    for byte in range(start, start + stride, LINE):
        prefetch(values, byte)
    prefetch(values, start + stride - ONE)


@inlined
def _decode(frozen, values, at, out, to):
    """Write the row whose bytes begin at values[at] to out[to : to + dim]."""
    dim = frozen.dim
    if frozen.form == INT8:
        scale, bias = load_scalar(values, at + dim), load_scalar(values, at + dim + np.uint64(4))
        for column in range(dim):
            out[to + column] = np.float32(values[at + column]) * scale + bias
    elif frozen.form == INT4:
        store(frozen.pair, ZERO, load_float16(values, at + (dim + ONE) // TWO, 2), 2)
        scale, bias = frozen.pair[0], frozen.pair[1]
        for column in range(dim):
            both = np.uint64(values[at + (column >> ONE)])
            number = (both >> ((column & ONE) << TWO)) & np.uint64(15)
            out[to + column] = np.float32(number) * scale + bias
    else:
        for column in range(ZERO, dim, LANES):
            lanes = np.int64(dim - column)
            if frozen.form == FLOAT32:
                value = load(values, at + np.uint64(4) * column, lanes)
            elif frozen.form == BFLOAT16:
                value = load_bfloat16(values, at + TWO * column, lanes)
            else:
                value = load_float16(values, at + TWO * column, lanes)
            store(out, to + column, value, lanes)


@helper
def _begin(frozen, features, f, key, out, to):
    """Write the embedding that training would return for a key at its first look-up."""
    dim, bound, salt = frozen.dim, features.bound[f], features.salt[f]
    id_ = unmix(key) ^ salt
    if bound < 0 or draw(frozen.seed, salt, id_) >= features.admission[f]:
        for column in range(dim):
            out[to + column] = np.float32(0.0)
        return
    begin_row(frozen.new, 0, frozen.seed, salt, id_, bound, frozen.pair)
    for column in range(ZERO, dim, LANES):
        lanes = np.int64(dim - column)
        store(out, to + column, embedding_lanes(frozen.new, ZERO, column, lanes), lanes)
