"""The counting of scores for metrics: one pass over the samples of a step, without the GIL."""

import math

import numpy as np
from numba import types

from persia_cli.kernels.toolchain.compile import kernel, read, write
from persia_cli.kernels.toolchain.needs import SCORING

F32, F64, U32 = types.float32, types.float64, types.uint32
SIGN, ALL = np.uint32(0x80000000), np.uint32(0xFFFFFFFF)


SCORES = types.boolean(read(F32), read(U32), read(F64), read(F64), write(U32), write(F64), write(F64), write(F64))


@kernel(SCORES, for_=SCORING)
def count_scores(logits, bits, labels, weights, numbers, negatives, positives, sums):
    """Find the number and the weights of each sample, and add to `sums`; return False if a logit is NaN.

    `bits` are the logits [n] as uint32, and their `numbers` ascend as the logits do. `sums` are of w l, w, w p and
    w y, with weight w, log loss l, prediction p and label y.
    """
    loss = weight = predicted = observed = 0.0
    for i in range(logits.size):
        z, y, w = np.float64(logits[i]), labels[i], weights[i]
        if z != z:
            return False
        number = np.uint32(0) if z == 0.0 else bits[i]  # both zeros are one logit
        numbers[i] = number ^ (ALL if number >= SIGN else SIGN)
        negatives[i], positives[i] = w * (1.0 - y), w * y
        # One exponential, which never overflows, gives both the loss and the probability.
        size = abs(z)
        small = math.exp(-size)
        wrong = 1.0 - y if z >= 0.0 else y
        log_loss = math.log1p(small) + (size * wrong if wrong != 0.0 else 0.0)
        loss += log_loss * w if w != 0.0 else 0.0
        weight += w
        predicted += w * ((1.0 if z >= 0.0 else small) / (1.0 + small))
        observed += w * y
    sums[0] += loss
    sums[1] += weight
    sums[2] += predicted
    sums[3] += observed
    return True
