"""The rows in the arena: their layout, and how a row is read, sent and initialized.

The arena is flat float32. Row r starts at word r * width: first the embedding (dim values, as float32, as 16-bit
values, two to a word, or as a float32 scale and numbers of 8 bits, four to a word), then the optimizer's states in
float32, then padding to 16 bytes.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.rows.cast import float16_factor
from persia_cli.kernels.rows.halves import load_bfloat16, load_float16, store_bfloat16, store_float16
from persia_cli.kernels.rows.hashing import mix
from persia_cli.kernels.rows.int8 import int8_scale, load_int8, store_int8, store_int8_at_random
from persia_cli.kernels.rows.splitmix import GOLDEN
from persia_cli.kernels.toolchain.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import prefetch, prefetch_to_l2
from persia_cli.kernels.toolchain.simd import greater_magnitude, greatest_magnitude, load, splat, store, store_scalar

FLOAT32, BFLOAT16, FLOAT16, INT8 = 0, 1, 2, 3
"""The dtypes in which values are stored or, except for INT8, sent."""
CODES = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16, "int8": INT8}
NO_ROW = np.int64(-1)
ZERO, ONE, TWO = np.uint64(0), np.uint64(1), np.uint64(2)
LANES = np.uint64(16)
LINE = np.uint64(16)
"""float32 words of a cache line."""
NEAREST = np.uint64(6144)
"""Number of float32 words of the L1 cache that prefetched rows may take."""
WIDE, AHEAD = np.uint64(256), np.uint64(8)
"""Minimum number of words of a wide row, and the number of wide rows that are prefetched ahead."""
FAR = np.uint64(48)
"""Number of rows ahead that are prefetched into the second-level cache."""


class RowArena(NamedTuple):
    """The values of one feature group's rows on one server, as arrays for kernels."""

    arena: NDArray[np.float32]
    """float32[rows * width]."""
    width: np.uint64
    """Words of a row."""
    dim: np.uint64
    """Columns of the embedding."""
    state_at: np.uint64
    """Words of a row before its optimizer states."""
    storage: int
    """The dtype of embeddings, one of `CODES`."""
    line: NDArray[np.float32]
    """float32[dim]: memory for intermediate results."""


ROWS = types.NamedTuple(
    (write(types.float32), types.uint64, types.uint64, types.uint64, types.int64, write(types.float32)), RowArena
)


@inlined
def start_of(rows, row):
    """Return the first word of a row."""
    return np.uint64(row) * rows.width


@inlined
def copy_words(source, at, target, to, count):
    """Copy float32 from source[at : at + count] to target[to : to + count]."""
    for word in range(ZERO, count, LANES):
        lanes = np.int64(count - word)
        store(target, to + word, load(source, at + word, lanes), lanes)


@inlined
def prefetch_words(rows, row, words):
    """Prefetch the first words of a row."""
    # A vector of which only some lanes count touches the memory of the others too. That may be one cache line more, for
    # which the processor would wait if it were not prefetched.
    at = start_of(rows, row)
    extra = ZERO if rows.dim % LANES == ZERO or rows.dim == ONE else LINE
    for word in range(ZERO, words + extra, LINE):
        prefetch(rows.arena, at + word)


@inlined
def embedding_lanes(rows, at, column, lanes):
    """Return lanes of an embedding, from a column on; its row starts at word `at`."""
    if rows.storage == FLOAT32:
        return load(rows.arena, at + column, lanes)
    if rows.storage == BFLOAT16:
        return load_bfloat16(rows.arena, at + (column >> ONE), lanes)
    if rows.storage == INT8:
        return load_int8(rows.arena, at + ONE + (column >> TWO), lanes) * splat(rows.arena[at])
    return load_float16(rows.arena, at + (column >> ONE), lanes)


@inlined
def _store_lanes(rows, at, column, value, lanes):
    """Write lanes of an embedding that is not of INT8, rounded to nearest."""
    if rows.storage == FLOAT32:
        store(rows.arena, at + column, value, lanes)
    elif rows.storage == BFLOAT16:
        store_bfloat16(rows.arena, at + (column >> ONE), value, lanes)
    else:
        store_float16(rows.arena, at + (column >> ONE), value, lanes)


@inlined
def pack_line(rows, at, randomly, noise):
    """Write `rows.line` as the embedding of an INT8 row that starts at word `at`, rounded to nearest or stochastically.

    `randomly` is a constant; random bits begin at `noise`.
    """
    greatest = splat(np.float32(0.0))
    for column in range(ZERO, rows.dim, LANES):
        greatest = greater_magnitude(greatest, load(rows.line, column, np.int64(rows.dim - column)))
    scale = int8_scale(greatest_magnitude(greatest))
    rows.arena[at] = scale
    for column in range(ZERO, rows.dim, LANES):
        lanes = np.int64(rows.dim - column)
        numbers, to = load(rows.line, column, lanes) / splat(scale), at + ONE + (column >> TWO)
        if randomly:
            store_int8_at_random(rows.arena, to, numbers, lanes, noise, np.int64(column))
        else:
            store_int8(rows.arena, to, numbers, lanes)


@inlined
def halves_per_row(dim, wire):
    """Return the number of uint16 words of a row on the wire."""
    if wire == FLOAT32:
        return TWO * dim
    return dim if wire == BFLOAT16 else dim + TWO


# Rows are prefetched while others are processed. Of narrow rows as many as the L1 cache holds are requested at once;
# of wide rows only the next few, since the processor can wait for only so many cache lines at a time.


@inlined
def burst_of(rows, words, size):
    """Return the number of rows, of `size`, to prefetch and process at once; `words` of each are needed."""
    if rows.width >= WIDE:
        return size
    return max(np.uint64(4), min(np.uint64(128), NEAREST // words))


@inlined
def prefetch_first(rows, numbers, start, stop, words):
    """Prefetch the rows found[start:stop]; of wide rows only the first few."""
    if rows.width >= WIDE:
        stop = min(start + AHEAD, stop)
    for i in range(start, stop):
        if numbers[i] >= 0:
            prefetch_words(rows, numbers[i], words)


@inlined
def prefetch_later(rows, numbers, i, stop, words):
    """Prefetch a row some places behind found[i], the present one, if rows are wide."""
    if rows.width >= WIDE and i + AHEAD < stop and numbers[i + AHEAD] >= 0:
        prefetch_words(rows, numbers[i + AHEAD], words)


@inlined
def prefetch_far(rows, numbers, i, stop):
    """Prefetch the row found[i] into the second-level cache, if it is before `stop`: it is needed much later."""
    if i < stop and numbers[i] >= 0:
        for word in range(ZERO, rows.width, LINE):
            prefetch_to_l2(rows.arena, start_of(rows, numbers[i]) + word)


@inlined
def send_rows(rows, numbers, start, stop, out, wire):
    """Write the embeddings of rows found[start:stop] (zeros for -1) to the uint16 words `out`, in the wire's dtype."""
    plain = rows.storage == FLOAT32 and wire == FLOAT32 and rows.dim % LANES == ZERO
    burst = burst_of(rows, rows.state_at, stop - start)
    for first in range(start, stop, burst):
        last = min(first + burst, stop)
        prefetch_first(rows, numbers, first, last, rows.state_at)
        for i in range(first, last):
            prefetch_later(rows, numbers, i, last, rows.state_at)
            if plain:
                _copy_row(rows, numbers[i], out, i)
            else:
                send_row(rows, numbers[i], out, i, wire)


@inlined
def _copy_row(rows, row, out, position):
    """Write a row as `send_row` does, if nothing is converted and the row is whole vectors."""
    to, at = position * rows.dim * TWO, start_of(rows, row)
    for column in range(ZERO, rows.dim, LANES):
        value = load(rows.arena, at + column, 16) if row >= 0 else splat(np.float32(0.0))
        store(out, to + TWO * column, value, 16)


@inlined
def send_row(rows, row, out, position, wire):
    """Write the embedding of a row (zeros for -1) as row `position` of the uint16 words `out`, in the wire's dtype."""
    to = position * halves_per_row(rows.dim, wire)
    if row < 0:
        for word in range(halves_per_row(rows.dim, wire)):
            out[to + word] = np.uint16(0)
        return
    at = start_of(rows, row)
    if wire == FLOAT16:
        _send_scaled(rows, at, out, to)
        return
    for column in range(ZERO, rows.dim, LANES):
        lanes = np.int64(rows.dim - column)
        value = embedding_lanes(rows, at, column, lanes)
        if wire == FLOAT32:
            store(out, to + TWO * column, value, lanes)
        else:
            store_bfloat16(out, to + column, value, lanes)


@inlined
def _send_scaled(rows, at, out, to):
    """Write a row as float16: its factor in float32, then its values divided by the factor."""
    greatest = splat(np.float32(0.0))
    for column in range(ZERO, rows.dim, LANES):
        greatest = greater_magnitude(greatest, embedding_lanes(rows, at, column, np.int64(rows.dim - column)))
    factor, reciprocal = float16_factor(greatest_magnitude(greatest))
    store_scalar(out, to, factor)
    scale = splat(reciprocal)
    for column in range(ZERO, rows.dim, LANES):
        lanes = np.int64(rows.dim - column)
        store_float16(out, to + TWO + column, embedding_lanes(rows, at, column, lanes) * scale, lanes)


@helper
def begin_row(rows, row, seed, salt, id_, bound, states):
    """Write the initial values of an id's row.

    Column c of the embedding is uniform in [-bound, bound) with 24 random bits, a function of (seed, salt, id, c)
    alone. `states` float32[width - state_at] are the start values of the optimizer's states.
    """
    line = rows.line
    start = mix(mix(mix(seed) ^ salt) ^ id_)
    scale = bound * np.float32(2.0**-23)
    for column in range(rows.dim):
        bits = np.int32(mix(start + (column + ONE) * GOLDEN) >> np.uint64(40))
        line[column] = np.float32(bits - np.int32(2**23)) * scale
    at = start_of(rows, row)
    if rows.storage == INT8:
        pack_line(rows, at, False, np.uint32(0))
    else:
        for column in range(ZERO, rows.dim, LANES):
            lanes = np.int64(rows.dim - column)
            _store_lanes(rows, at, column, load(line, column, lanes), lanes)
    for word in range(rows.width - rows.state_at):
        rows.arena[at + rows.state_at + word] = states[word]


@kernel(types.void(ROWS, read(types.int64), types.uint64, types.uint64, read(types.float32)))
def fill_rows(rows, numbers, first, columns, words):
    """Write `words`, float32[n * columns], to the rows `numbers`, from word `first` of each; negative rows are skipped.

    If a row comes twice, the later words stay.
    """
    for i in range(np.uint64(numbers.size)):
        if numbers[i] >= 0:
            copy_words(words, i * columns, rows.arena, start_of(rows, numbers[i]) + first, columns)
