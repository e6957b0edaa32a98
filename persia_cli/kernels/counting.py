"""The counting of scores for metrics: one pass over the samples of a step, without the GIL."""

import math

import numpy as np
from numba import types

from persia_cli.kernels.compile import kernel, read, write

F32, F64, U32, U64 = types.float32, types.float64, types.uint32, types.uint64
SIGN, ALL = np.uint32(0x80000000), np.uint32(0xFFFFFFFF)


SCORES = types.boolean(read(F32), read(U32), read(F64), read(F64), write(U32), write(F64), write(F64), write(F64))


@kernel(SCORES)
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
        own = math.log1p(small) + (size * wrong if wrong != 0.0 else 0.0)
        loss += own * w if w != 0.0 else 0.0
        weight += w
        predicted += w * ((1.0 if z >= 0.0 else small) / (1.0 + small))
        observed += w * y
    sums[0] += loss
    sums[1] += weight
    sums[2] += predicted
    sums[3] += observed
    return True


@kernel(types.intp(read(U64), read(F64), read(F64), write(U32), write(F64), write(F64)))
def add_equal(keys, negatives, positives, numbers, out_negatives, out_positives):
    """Add up the weights of equal numbers, without those that are 0; return how many distinct numbers there are.

    `keys` [n], ascending, are numbers times 2^32 plus the place of their weights. The results fit into the first
    places of `numbers` and its weights, all [n].
    """
    count = 0
    for key in keys:
        number, place = np.uint32(key >> np.uint64(32)), np.int64(key & np.uint64(0xFFFFFFFF))
        if negatives[place] == 0.0 and positives[place] == 0.0:
            continue
        if count and numbers[count - 1] == number:
            out_negatives[count - 1] += negatives[place]
            out_positives[count - 1] += positives[place]
        else:
            numbers[count], out_negatives[count] = number, negatives[place]
            out_positives[count] = positives[place]
            count += 1
    return count


@kernel(types.intp(write(U32), write(F64), write(F64), types.intp, write(F64)))
def condense(numbers, negatives, positives, cells, positions):
    """Merge ascending numbers [n] into at most `cells` of them, in place, and return how many there are.

    Errors are small where few pairs of a negative and a positive get equal numbers, for AUC, and where few samples do
    compared with those above them, for average precision. So each cell has an equal part of a sum that rises towards
    the lowest number: a quarter each by the share of negatives and of positives passed, half by the logarithm of the
    weight passed. Cells go by the middle of a number's part, so a number with more than its part of the sum stays
    alone. A cell has the number at its middle. `positions` [n] is for the sums. The results are the last ones.
    """
    last = numbers.size - 1
    all_negatives, all_positives = negatives.sum(), positives.sum()
    top = negatives[last] + positives[last]
    span = math.log((all_negatives + all_positives) / top)
    of_negatives = 0.25 / all_negatives if all_negatives > 0.0 else 0.0
    of_positives = 0.25 / all_positives if all_positives > 0.0 else 0.0
    of_span = 0.5 / span if span > 0.0 else 0.0
    passed_negatives = passed_positives = before = 0.0
    first, cell, count = last, -1, 0
    for i in range(last, -2, -1):
        own = cells
        if i >= 0:
            passed_negatives += negatives[i]
            passed_positives += positives[i]
            depth = math.log((passed_negatives + passed_positives) / top)
            positions[i] = passed_negatives * of_negatives + passed_positives * of_positives + depth * of_span
            own = min(np.int64((before + positions[i]) / 2.0 * cells), cells - 1)
        if own != cell and cell >= 0:
            start = positions[first + 1] if first < last else 0.0
            middle, place = (start + positions[i + 1]) / 2.0, first
            while positions[place] < middle and place > i + 1:
                place -= 1
            sum_negatives = sum_positives = 0.0
            for each in range(i + 1, first + 1):
                sum_negatives += negatives[each]
                sum_positives += positives[each]
            count += 1
            to = numbers.size - count
            numbers[to], negatives[to], positives[to] = numbers[place], sum_negatives, sum_positives
            first = i
        cell = own
        if i >= 0:
            before = positions[i]
    return count
