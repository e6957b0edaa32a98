"""Pooling of unique rows into one vector per sample and feature, padded sequences, and their gradients.

Rows are addressed as an embedding worker numbers them: `inverse[i]` is the unique row of the i-th id of a feature
group, ids lying feature-major. `offsets` is the CSR of that order, or None when every feature has one id per sample.
"""

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.compile import kernel, read, write

F32, I32, U32, U8, I64 = types.float32, types.int32, types.uint32, types.uint8, types.int64
SUM, MEAN, SQRTN, NONE = 0, 1, 2, 3
MODES = {"sum": SUM, "mean": MEAN, "sqrtn": SQRTN, "none": NONE}
"""Number of each pooling; features of mode `none` are sequences, skipped by `pool_forward` and `pool_backward`."""

_NO_OFFSETS = np.empty(0, np.uint32)

Floats = NDArray[np.float32]


def pool_forward(
    rows: Floats, inverse: NDArray[np.int32], offsets: NDArray[np.uint32] | None, modes: NDArray[np.uint8], out: Floats
) -> None:
    """Pool float32[U, dim] rows into out float32[n, C, dim], where C counts the features whose mode is not `none`.

    inverse int32[ids of the group], offsets uint32[F*n+1] or None, modes uint8[F] (see `MODES`). Ids of a sample are
    added in their order; an empty sample gives zeros. Raises ValueError when the arrays do not fit each other.
    """
    size, columns, dim = out.shape
    _require(columns == np.count_nonzero(modes != NONE), "out has not one column per pooled feature")
    _require(rows.shape[1] == dim, "rows and out differ in dim")
    _check(inverse, offsets, modes.size * size, len(rows))
    flat = rows.reshape(-1)
    if offsets is None:
        _forward_single(flat, inverse, modes, size, columns, dim, _flat(out))
    else:
        _forward(flat, inverse, offsets, modes, size, columns, dim, _flat(out))


def pool_backward(
    gradient: Floats,
    inverse: NDArray[np.int32],
    offsets: NDArray[np.uint32] | None,
    modes: NDArray[np.uint8],
    gradients: Floats,
) -> None:
    """Add the gradient float32[n, C, dim] of pooled vectors to `gradients` float32[U, dim] of the unique rows.

    Summed in the order features, then samples, then ids: the result depends on the batch alone. The caller zeroes
    `gradients` first. Raises ValueError as `pool_forward` does.
    """
    size, columns, dim = gradient.shape
    _require(columns == np.count_nonzero(modes != NONE), "gradient has not one column per pooled feature")
    _require(gradients.shape[1] == dim, "gradient and gradients differ in dim")
    _check(inverse, offsets, modes.size * size, len(gradients))
    flat = gradient.reshape(-1)
    if offsets is None:
        _backward_single(flat, inverse, modes, size, columns, dim, _flat(gradients))
    else:
        _backward(flat, inverse, offsets, modes, size, columns, dim, _flat(gradients))


def sequence_forward(
    rows: Floats,
    inverse: NDArray[np.int32],
    offsets: NDArray[np.uint32] | None,
    values: Floats,
    mask: NDArray[np.bool_],
) -> None:
    """Spread one feature's rows into values float32[n, L, dim] and mask bool[n, L], True where there is an id.

    inverse int32[ids of the group] with the feature's own n+1 entries of the group's offsets, or its n entries of
    inverse and None. A sample keeps its last L ids, from position 0 on; the rest is zeros.
    """
    size, length, dim = values.shape
    _require(mask.shape == (size, length) and rows.shape[1] == dim, "rows, values and mask do not fit")
    bounds = _sequence_offsets(inverse, offsets, size, len(rows))
    _spread(
        rows.reshape(-1),
        inverse,
        bounds,
        length,
        dim,
        _flat(values),
        _flat(mask).view(np.uint8),
    )


def sequence_backward(
    gradient: Floats, inverse: NDArray[np.int32], offsets: NDArray[np.uint32] | None, gradients: Floats
) -> None:
    """Add the gradient float32[n, L, dim] of one feature's sequences to `gradients` float32[U, dim], in id order."""
    size, length, dim = gradient.shape
    _require(gradients.shape[1] == dim, "gradient and gradients differ in dim")
    bounds = _sequence_offsets(inverse, offsets, size, len(gradients))
    _gather_back(gradient.reshape(-1), inverse, bounds, length, dim, _flat(gradients))


def _flat(result: NDArray[Any]) -> NDArray[Any]:
    _require(result.flags.c_contiguous, "a result would be written to a copy: it must be C-contiguous")
    return result.reshape(-1)


def _require(fits: bool, sentence: str) -> None:
    if not fits:
        raise ValueError(sentence)


def _check(inverse: NDArray[np.int32], offsets: NDArray[np.uint32] | None, bags: int, rows: int) -> None:
    """Refuse indexes that would read or write outside the rows."""
    if offsets is None:
        _require(inverse.size == bags, "one id per sample needs as many inverse entries as features x samples")
    else:
        _require(offsets.size == bags + 1, "offsets has not features x samples + 1 entries")
    bounds = _NO_OFFSETS if offsets is None else offsets
    _require(_within(inverse, bounds, rows), "inverse or offsets point outside the rows")


def _sequence_offsets(
    inverse: NDArray[np.int32], offsets: NDArray[np.uint32] | None, size: int, rows: int
) -> NDArray[np.uint32]:
    _check(inverse, offsets, size, rows)
    return np.arange(size + 1, dtype=np.uint32) if offsets is None else offsets


@kernel(types.boolean(read(I32), read(U32), I64))
def _within(inverse, offsets, rows):
    bad = False
    for i in range(inverse.size):
        bad |= (inverse[i] < 0) | (inverse[i] >= rows)
    for i in range(1, offsets.size):
        bad |= offsets[i] < offsets[i - 1]
    if offsets.size > 0:
        bad |= offsets[offsets.size - 1] > inverse.size
    return not bad


@kernel(types.void(read(F32), read(I32), read(U32), read(U8), I64, I64, I64, write(F32)))
def _forward(rows, inverse, offsets, modes, size, columns, dim, out):
    width = np.uint64(dim)
    column = 0
    for feature in range(modes.size):
        mode = modes[feature]
        if mode == NONE:
            continue
        for sample in range(size):
            to = np.uint64((sample * columns + column) * dim)
            for d in range(width):
                out[to + d] = 0.0
            start = np.uint64(offsets[feature * size + sample])
            stop = np.uint64(offsets[feature * size + sample + 1])
            for i in range(start, stop):
                row = np.uint64(inverse[i]) * width
                for d in range(width):
                    out[to + d] += rows[row + d]
            if mode != SUM and stop > start + np.uint64(1):
                count = np.float32(stop - start)
                divisor = count if mode == MEAN else np.sqrt(count)
                for d in range(width):
                    out[to + d] /= divisor
        column += 1


@kernel(types.void(read(F32), read(I32), read(U8), I64, I64, I64, write(F32)))
def _forward_single(rows, inverse, modes, size, columns, dim, out):
    width = np.uint64(dim)
    column = 0
    for feature in range(modes.size):
        if modes[feature] == NONE:
            continue
        for sample in range(size):
            to = np.uint64((sample * columns + column) * dim)
            row = np.uint64(inverse[feature * size + sample]) * width
            for d in range(width):
                out[to + d] = rows[row + d]
        column += 1


@kernel(types.void(read(F32), read(I32), read(U32), read(U8), I64, I64, I64, write(F32)))
def _backward(gradient, inverse, offsets, modes, size, columns, dim, gradients):
    width = np.uint64(dim)
    column = 0
    for feature in range(modes.size):
        mode = modes[feature]
        if mode == NONE:
            continue
        for sample in range(size):
            source = np.uint64((sample * columns + column) * dim)
            start = np.uint64(offsets[feature * size + sample])
            stop = np.uint64(offsets[feature * size + sample + 1])
            divisor = np.float32(1.0)
            if mode == MEAN:
                divisor = np.float32(stop - start)
            elif mode == SQRTN:
                divisor = np.sqrt(np.float32(stop - start))
            for i in range(start, stop):
                row = np.uint64(inverse[i]) * width
                for d in range(width):
                    gradients[row + d] += gradient[source + d] / divisor
        column += 1


@kernel(types.void(read(F32), read(I32), read(U8), I64, I64, I64, write(F32)))
def _backward_single(gradient, inverse, modes, size, columns, dim, gradients):
    width = np.uint64(dim)
    column = 0
    for feature in range(modes.size):
        if modes[feature] == NONE:
            continue
        for sample in range(size):
            source = np.uint64((sample * columns + column) * dim)
            row = np.uint64(inverse[feature * size + sample]) * width
            for d in range(width):
                gradients[row + d] += gradient[source + d]
        column += 1


@kernel(types.void(read(F32), read(I32), read(U32), I64, I64, write(F32), write(U8)))
def _spread(rows, inverse, offsets, length, dim, values, mask):
    width = np.uint64(dim)
    for sample in range(offsets.size - 1):
        stop = np.int64(offsets[sample + 1])
        start = max(np.int64(offsets[sample]), stop - length)
        for position in range(length):
            to = np.uint64((sample * length + position) * dim)
            present = start + position < stop
            mask[sample * length + position] = present
            if present:
                row = np.uint64(inverse[start + position]) * width
                for d in range(width):
                    values[to + d] = rows[row + d]
            else:
                for d in range(width):
                    values[to + d] = 0.0


@kernel(types.void(read(F32), read(I32), read(U32), I64, I64, write(F32)))
def _gather_back(gradient, inverse, offsets, length, dim, gradients):
    width = np.uint64(dim)
    for sample in range(offsets.size - 1):
        stop = np.int64(offsets[sample + 1])
        start = max(np.int64(offsets[sample]), stop - length)
        for position in range(stop - start):
            source = np.uint64((sample * length + position) * dim)
            row = np.uint64(inverse[start + position]) * width
            for d in range(width):
                gradients[row + d] += gradient[source + d]
