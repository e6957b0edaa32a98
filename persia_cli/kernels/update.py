"""Rows out of the arena, and the optimizers that change them.

The arena is flat float32; row r starts at r * width: embedding (dim), optimizer states (dim each), padding. The
optimizers are torch's for sparse gradients: `SGD`, `Adagrad`, `SparseAdam`, in float32. Row -1 means no row.
"""

import numpy as np
from numba import types

from persia_cli.kernels.compile import kernel, read, write
from persia_cli.kernels.intrinsics import prefetch

F32, U16, U32, U64, I64 = types.float32, types.uint16, types.uint32, types.uint64, types.int64
SCORE_MASK = np.uint64(2**48 - 1)
EXPONENT = np.uint32(0x7F800000)
AHEAD = 16
"""Rows whose memory is asked for ahead of being read."""
LINE = 16
"""float32 values of a cache line."""


@kernel(types.void(read(F32), I64, I64, read(I64), write(F32)))
def gather(arena, width, dim, rows, out):
    """Write the embeddings of `rows` to out (flat [n, dim]); row -1 gives zeros."""
    columns = np.uint64(dim)
    for i in range(rows.size):
        if i + AHEAD < rows.size and rows[i + AHEAD] >= 0:
            for c in range(0, dim, LINE):
                prefetch(arena, np.uint64(rows[i + AHEAD] * width + c))
        to = np.uint64(i) * columns
        if rows[i] < 0:
            for c in range(columns):
                out[to + c] = 0.0
        else:
            row = np.uint64(rows[i] * width)
            for c in range(columns):
                out[to + c] = arena[row + c]


@kernel(types.void(write(I64), read(U16), read(U32), I64, write(U64), U64, write(I64), write(I64)))
def screen_gradients(rows, tables, bits, dim, info, step, missing, refused):
    """Decide which gradients are applied, and raise the scores of their rows to `step`.

    `bits` are the gradients (flat [n, dim]) seen as uint32. Gradients of row -1 count as missing; those with a value
    that is not finite are refused: their row becomes -1.
    """
    columns = np.uint64(dim)
    for i in range(rows.size):
        row = rows[i]
        if row < 0:
            missing[tables[i]] += 1
            continue
        bad = False
        start = np.uint64(i) * columns
        for c in range(columns):
            bad |= bits[start + c] & EXPONENT == EXPONENT
        if bad:
            refused[tables[i]] += 1
            rows[i] = -1
        else:
            info[row] = (info[row] & ~SCORE_MASK) | max(info[row] & SCORE_MASK, step)


@kernel(types.void(write(F32), I64, I64, read(I64), read(F32), F32))
def sgd(arena, width, dim, rows, gradients, lr):
    """w -= lr * g."""
    columns = np.uint64(dim)
    for i in range(rows.size):
        if i + AHEAD < rows.size and rows[i + AHEAD] >= 0:
            for c in range(0, dim, LINE):
                prefetch(arena, np.uint64(rows[i + AHEAD] * width + c))
        if rows[i] >= 0:
            row, start = np.uint64(rows[i] * width), np.uint64(i) * columns
            for c in range(columns):
                arena[row + c] -= lr * gradients[start + c]


@kernel(types.void(write(F32), I64, I64, read(I64), read(F32), F32, F32))
def adagrad(arena, width, dim, rows, gradients, lr, eps):
    """sum += g * g; w -= lr * g / (sqrt(sum) + eps)."""
    columns = np.uint64(dim)
    for i in range(rows.size):
        if i + AHEAD < rows.size and rows[i + AHEAD] >= 0:
            for c in range(0, width, LINE):
                prefetch(arena, np.uint64(rows[i + AHEAD] * width + c))
        if rows[i] >= 0:
            row, start = np.uint64(rows[i] * width), np.uint64(i) * columns
            state = row + columns
            for c in range(columns):
                g = gradients[start + c]
                total = arena[state + c] + g * g
                arena[state + c] = total
                arena[row + c] -= lr * (g / (np.sqrt(total) + eps))


@kernel(types.void(write(F32), I64, I64, read(I64), read(F32), F32, F32, F32, F32))
def adam(arena, width, dim, rows, gradients, step_size, one_minus_beta1, one_minus_beta2, eps):
    """mean += (1-b1)(g - mean); square += (1-b2)(g*g - square); w -= step_size * mean / (sqrt(square) + eps)."""
    columns = np.uint64(dim)
    for i in range(rows.size):
        if i + AHEAD < rows.size and rows[i + AHEAD] >= 0:
            for c in range(0, width, LINE):
                prefetch(arena, np.uint64(rows[i + AHEAD] * width + c))
        if rows[i] >= 0:
            row, start = np.uint64(rows[i] * width), np.uint64(i) * columns
            first, second = row + columns, row + columns + columns
            for c in range(columns):
                g = gradients[start + c]
                mean = arena[first + c] + one_minus_beta1 * (g - arena[first + c])
                square = arena[second + c] + one_minus_beta2 * (g * g - arena[second + c])
                arena[first + c] = mean
                arena[second + c] = square
                arena[row + c] -= step_size * (mean / (np.sqrt(square) + eps))
