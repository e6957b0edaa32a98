"""Pooling of unique rows into one vector per sample and feature, padded sequences, and their gradients.

Rows are addressed as in `kernels.bags`.
"""

import numpy as np
from numba import types
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from persia_cli.kernels.batch.bags import (
    FAR,
    ONE,
    STEP,
    ZERO,
    add_to_rows,
    bag_of,
    check_bags,
    flat,
    require,
    sequence_offsets,
    write_sum,
)
from persia_cli.kernels.toolchain.compile import helper, inlined, kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import prefetch
from persia_cli.kernels.toolchain.needs import BAGS, SEQUENCES, SINGLE
from persia_cli.kernels.toolchain.simd import load, splat, store

F32, I32, U32, U8, I64, U64 = types.float32, types.int32, types.uint32, types.uint8, types.int64, types.uint64
SUM, MEAN, SQRTN, NONE = 0, 1, 2, 3
MODES = {"sum": SUM, "mean": MEAN, "sqrtn": SQRTN, "none": NONE, "negatives": NONE}
"""The number of each pooling; `none` marks features that `pool_forward` and `pool_backward` skip: sequences, and drawn
negatives."""
Floats = NDArray[np.float32]


def pool_forward(
    rows: Floats,
    inverse: NDArray[np.int32],
    offsets: NDArray[np.uint32] | None,
    modes: NDArray[np.uint8],
    rounds: NDArray[np.int64],
    out: Floats,
) -> None:
    """Pool float32[U, dim] rows into out float32[n, C, dim], where C counts the features whose mode is not `none`.

    inverse int32[entries of the group], offsets uint32[F*n+1] or None, modes uint8[F] (see `MODES`), rounds int64[F].
    Rows of a sample are added in their order; an empty sample gives zeros. Raises ValueError if the arrays do not fit
    each other.
    """
    size, columns, dim = out.shape
    require(columns == np.count_nonzero(modes != NONE), "out must have one column per pooled feature")
    require(rows.shape[1] == dim, "rows and out must have the same dim")
    require(modes.size == rounds.size, "modes and rounds must have one entry per feature")
    check_bags(inverse, offsets, modes.size * size, len(rows), rounds)
    values = rows.reshape(-1)
    if offsets is None:
        _forward_single(values, inverse, modes, size, dim, flat(out))
    else:
        _forward(values, inverse, offsets, modes, rounds, size, dim, flat(out))


def pool_backward(
    gradient: Floats,
    inverse: NDArray[np.int32],
    offsets: NDArray[np.uint32] | None,
    modes: NDArray[np.uint8],
    rounds: NDArray[np.int64],
    gradients: Floats,
) -> None:
    """Add the gradient float32[n, C, dim] of pooled vectors to `gradients` float32[U, dim] of the unique rows.

    Samples may be apart, as in a gradient of more columns; if the vectors of one are not contiguous, they are copied.
    Sums are in the order of samples, then features, then ids, so that the result depends on the batch alone. The caller
    zeroes `gradients` first. Raises ValueError if the arrays do not fit each other.
    """
    size, columns, dim = gradient.shape
    require(columns == np.count_nonzero(modes != NONE), "gradient must have one column per pooled feature")
    require(gradients.shape[1] == dim, "gradient and gradients must have the same dim")
    require(modes.size == rounds.size, "modes and rounds must have one entry per feature")
    check_bags(inverse, offsets, modes.size * size, len(gradients), rounds)
    if not gradient[:1].flags.c_contiguous:
        gradient = np.ascontiguousarray(gradient)
    apart = gradient.strides[0] // gradient.itemsize
    span = (size - 1) * apart + columns * dim if gradient.size else 0
    values = as_strided(gradient, (span,), (gradient.itemsize,), writeable=False)
    if offsets is None:
        _backward_single(values, inverse, modes, size, dim, apart, flat(gradients))
    else:
        scaled = np.empty(dim, np.float32)
        _backward(values, inverse, offsets, modes, rounds, size, dim, apart, scaled, flat(gradients))


def sequence_forward(
    rows: Floats,
    inverse: NDArray[np.int32],
    offsets: NDArray[np.uint32] | None,
    rounds: int,
    values: Floats,
    mask: NDArray[np.bool_],
) -> None:
    """Write one feature's rows to values float32[n, L, dim] and set mask bool[n, L] to True where there is an id.

    Take inverse int32[entries of the group] and the feature's own n+1 entries of the group's offsets; or its own n
    entries of inverse, and None. A sample's last L ids are used, from position 0 on; the rest is zeros.
    """
    size, length, dim = values.shape
    require(mask.shape == (size, length) and rows.shape[1] == dim, "rows, values and mask must have matching shapes")
    bounds = sequence_offsets(inverse, offsets, size, len(rows), rounds)
    _spread(rows.reshape(-1), inverse, bounds, rounds, length, dim, flat(values), flat(mask).view(np.uint8))


def sequence_backward(
    gradient: Floats, inverse: NDArray[np.int32], offsets: NDArray[np.uint32] | None, rounds: int, gradients: Floats
) -> None:
    """Add the gradient float32[n, L, dim] of one feature's sequences to `gradients` float32[U, dim], in id order."""
    size, length, dim = gradient.shape
    require(gradients.shape[1] == dim, "gradient and gradients must have the same dim")
    bounds = sequence_offsets(inverse, offsets, size, len(gradients), rounds)
    _gather_back(gradient.reshape(-1), inverse, bounds, rounds, length, dim, flat(gradients))


@inlined
def _divisor(mode, ids):
    """Return the divisor of the sum over a bag of `ids` ids."""
    if mode == MEAN:
        return np.float32(ids)
    if mode == SQRTN:
        return np.sqrt(np.float32(ids))
    return np.float32(1)


@helper
def _divide(values, at, dim, mode, ids):
    """Divide values[at : at + dim], the sum over `ids` ids, by the divisor of the mode."""
    divisor = splat(_divisor(mode, ids))
    for c in range(ZERO, dim, STEP):
        lanes = np.int64(dim - c)
        store(values, at + c, load(values, at + c, lanes) / divisor, lanes)


@kernel(types.void(read(F32), read(I32), read(U32), read(U8), read(I64), U64, U64, write(F32)), for_=BAGS)
def _forward(rows, inverse, offsets, modes, rounds, size, dim, out):
    to = ZERO
    for sample in range(size):
        for feature in range(np.uint64(modes.size)):
            mode, per_id = modes[feature], np.uint64(rounds[feature])
            if mode == NONE:
                continue
            start, stop = bag_of(offsets, feature, size, sample)
            write_sum(rows, inverse, start, stop, dim, out, to)
            if mode != SUM and stop - start > per_id:
                _divide(out, to, dim, mode, (stop - start) // per_id)
            to += dim


@kernel(
    types.void(read(F32), read(I32), read(U32), read(U8), read(I64), U64, U64, U64, write(F32), write(F32)), for_=BAGS
)
def _backward(gradient, inverse, offsets, modes, rounds, size, dim, apart, scaled, gradients):
    for sample in range(size):
        at = sample * apart
        for feature in range(np.uint64(modes.size)):
            mode, per_id = modes[feature], np.uint64(rounds[feature])
            if mode == NONE:
                continue
            start, stop = bag_of(offsets, feature, size, sample)
            divisor = splat(_divisor(mode, (stop - start) // per_id))
            for c in range(ZERO, dim, STEP):
                store(scaled, c, load(gradient, at + c, np.int64(dim - c)) / divisor, np.int64(dim - c))
            add_to_rows(scaled, ZERO, inverse, start, stop, dim, gradients)
            at += dim


# With one id per sample, pooling only copies rows; those of one column as numbers, which takes half the time of vectors
# of one lane. `whole`: dim is a multiple of a vector's lanes. `apart`: the numbers from one sample to the next.


@kernel(types.void(read(F32), read(I32), read(U8), U64, U64, write(F32)), for_=SINGLE)
def _forward_single(rows, inverse, modes, size, dim, out):
    apart = np.uint64(out.size) // max(size, ONE)
    if dim % STEP == ZERO:
        _move_rows(True, False, rows, inverse, modes, size, dim, apart, out)
    elif dim == ONE:
        at = ZERO
        for sample in range(size):
            for feature in range(np.uint64(modes.size)):
                if modes[feature] != NONE:
                    out[at] = rows[np.uint64(inverse[feature * size + sample])]
                    at += ONE
    else:
        _move_rows(False, False, rows, inverse, modes, size, dim, apart, out)


@kernel(types.void(read(F32), read(I32), read(U8), U64, U64, U64, write(F32)), for_=SINGLE)
def _backward_single(gradient, inverse, modes, size, dim, apart, gradients):
    if dim % STEP == ZERO:
        _move_rows(True, True, gradients, inverse, modes, size, dim, apart, gradient)
    elif dim == ONE:
        for sample in range(size):
            at = sample * apart
            for feature in range(np.uint64(modes.size)):
                if modes[feature] != NONE:
                    gradients[np.uint64(inverse[feature * size + sample])] += gradient[at]
                    at += ONE
    else:
        _move_rows(False, True, gradients, inverse, modes, size, dim, apart, gradient)


@inlined
def _move_rows(whole, back, rows, inverse, modes, size, dim, apart, vectors):
    """Copy each entry's row to its vector, or `back`: add each vector to its row."""
    for sample in range(size):
        at = sample * apart
        for feature in range(np.uint64(modes.size)):
            if modes[feature] == NONE:
                continue
            entry = feature * size + sample
            if dim >= FAR and sample + ONE < size:
                for c in range(ZERO, dim, STEP):
                    prefetch(rows, np.uint64(inverse[entry + ONE]) * dim + c)
            row = np.uint64(inverse[entry]) * dim
            for c in range(ZERO, dim, STEP):
                lanes = np.int64(16) if whole else np.int64(dim - c)
                if back:
                    store(rows, row + c, load(rows, row + c, lanes) + load(vectors, at + c, lanes), lanes)
                else:
                    store(vectors, at + c, load(rows, row + c, lanes), lanes)
            at += dim


@kernel(types.void(read(F32), read(I32), read(U32), I64, I64, U64, write(F32), write(U8)), for_=SEQUENCES)
def _spread(rows, inverse, offsets, per_id, length, dim, values, mask):
    for sample in range(offsets.size - 1):
        stop = np.int64(offsets[sample + 1])
        start = max(np.int64(offsets[sample]), stop - length * per_id)
        for position in range(length):
            first, cell = min(start + position * per_id, stop), sample * length + position
            last = min(first + per_id, stop)
            mask[cell] = first < last
            write_sum(rows, inverse, np.uint64(first), np.uint64(last), dim, values, np.uint64(cell) * dim)


@kernel(types.void(read(F32), read(I32), read(U32), I64, I64, U64, write(F32)), for_=SEQUENCES)
def _gather_back(gradient, inverse, offsets, per_id, length, dim, gradients):
    for sample in range(offsets.size - 1):
        stop = np.int64(offsets[sample + 1])
        start = max(np.int64(offsets[sample]), stop - length * per_id)
        for position in range((stop - start) // per_id):
            first, at = start + position * per_id, np.uint64(sample * length + position) * dim
            add_to_rows(gradient, at, inverse, np.uint64(first), np.uint64(first + per_id), dim, gradients)
