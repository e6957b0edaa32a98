"""Slow, plain twins of the kernels: what each must compute, written the obvious way."""

import numpy as np

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def pool_forward(rows, inverse, offsets, modes, size):
    """float32[n, C, dim] of unique rows pooled by mode (0 sum, 1 mean, 2 sqrtn, 3 skipped), added in order."""
    columns = []
    for feature, mode in enumerate(modes):
        if mode == 3:
            continue
        column = np.zeros((size, rows.shape[1]), np.float32)
        for sample in range(size):
            ids = inverse[offsets[feature * size + sample] : offsets[feature * size + sample + 1]]
            for row in ids:
                column[sample] += rows[row]
            if len(ids):
                column[sample] /= divisor(mode, len(ids))
        columns.append(column)
    return np.stack(columns, 1) if columns else np.zeros((size, 0, rows.shape[1]), np.float32)


def divisor(mode, count):
    """What a pooled sum of `count` rows is divided by."""
    return np.float32([1, count, np.sqrt(np.float32(count))][mode])


def pool_backward(gradient, inverse, offsets, modes, rows):
    """float32[rows, dim]: gradient float32[n, C, dim] of pooled vectors summed per unique row."""
    size = gradient.shape[0]
    gradients = np.zeros((rows, gradient.shape[2]), np.float32)
    columns = iter(range(gradient.shape[1]))
    for feature, mode in enumerate(modes):
        if mode == 3:
            continue
        column = next(columns)
        for sample in range(size):
            ids = inverse[offsets[feature * size + sample] : offsets[feature * size + sample + 1]]
            for row in ids:
                gradients[row] += gradient[sample, column] / divisor(mode, len(ids))
    return gradients


def sequence_forward(rows, inverse, offsets, length):
    """values float32[n, length, dim] and mask bool[n, length]: the last `length` rows of each sample."""
    size = len(offsets) - 1
    values = np.zeros((size, length, rows.shape[1]), np.float32)
    mask = np.zeros((size, length), bool)
    for sample in range(size):
        for position, row in enumerate(inverse[offsets[sample] : offsets[sample + 1]][-length:]):
            values[sample, position] = rows[row]
            mask[sample, position] = True
    return values, mask


def sequence_backward(gradient, inverse, offsets, rows):
    """float32[rows, dim]: gradient float32[n, length, dim] of a feature's sequences summed per unique row."""
    gradients = np.zeros((rows, gradient.shape[2]), np.float32)
    for sample in range(len(offsets) - 1):
        for position, row in enumerate(inverse[offsets[sample] : offsets[sample + 1]][-gradient.shape[1] :]):
            gradients[row] += gradient[sample, position]
    return gradients
