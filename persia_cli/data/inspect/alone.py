"""The AUC that one column gives alone, measured out of sample.

Rows are in two halves. The rate of positives of each value in one half scores the rows of the other half, so ids that
hardly repeat give .5. Numbers are also taken unchanged, in either direction, and in BINS bins of equally many rows.
The best of these counts.
"""

import math

import numpy as np
from numpy.typing import NDArray

LEAK, SUSPICIOUS = 0.99, 0.95
"""AUC above which a column probably holds the label, and above which it may."""
PERFECT = 0.999
LEAST_ROWS = 10
"""Rows of each class without which nothing is measured."""
BINS = 32
_ONE_SIDED, _PURE = 50, 0.995
"""Null, or filled, rows that show that nulls follow the label, and the part of them that has one class."""
_NORMAL = 1.645
"""Deviations from the mean that 95 % of normal values do not exceed."""


def auc_alone(
    keys: NDArray[np.uint64], numbers: NDArray[np.float64] | None, positive: NDArray[np.bool_], half: NDArray[np.bool_]
) -> float:
    """Return the AUC of a column by rows: `keys` are equal for equal values, `numbers` are NaN for nulls.

    Null counts as a value. Return .5 if a half has rows of one class alone.
    """
    areas = [_by_rate(keys, positive, half)]
    if numbers is not None:
        ranked = area(np.where(np.isnan(numbers), -np.inf, numbers), positive)
        areas += [ranked, 1 - ranked, _by_rate(_bins(numbers), positive, half)]
    return max(areas)


def area(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """Return the AUC of scores; equal ones count half. Return .5 if one class has no rows."""
    _, rank = np.unique(scores, return_inverse=True)
    ones, all_ = np.bincount(rank[positive], minlength=rank.max(initial=0) + 1), np.bincount(rank)
    zeros = all_ - ones
    below = np.cumsum(zeros) - zeros / 2
    pairs = float(ones.sum()) * float(zeros.sum())
    return float(ones @ below) / pairs if pairs else 0.5


def least(auc: float, positives: int, negatives: int) -> float:
    """Return the lower end of an AUC's one-sided 95 % confidence interval.

    The error is that of Hanley and McNeil (1982) for an AUC of at most LEAK, for it would be 0 at 1.
    """
    a = min(auc, LEAK)
    ones, zeros = a / (2 - a) - a * a, 2 * a * a / (1 + a) - a * a
    variance = (a * (1 - a) + (positives - 1) * ones + (negatives - 1) * zeros) / (positives * negatives)
    return auc - _NORMAL * math.sqrt(variance)


def is_leak(auc: float, positives: int, negatives: int) -> bool:
    """Return True if an AUC is above LEAK, and not by chance in few rows.

    Its confidence interval begins above .985, or above .95 where it is above PERFECT.
    """
    return auc > LEAK and least(auc, positives, negatives) > (0.95 if auc > PERFECT else 0.985)


def is_suspicious(auc: float, positives: int, negatives: int) -> bool:
    """Return True if an AUC is above SUSPICIOUS, and its confidence interval begins above .9."""
    return auc > SUSPICIOUS and least(auc, positives, negatives) > 0.9


def rarest_by_nulls(is_null: NDArray[np.bool_], positive: NDArray[np.bool_]) -> float:
    """Return the part of all rows that has the class which nearly all null rows, or all filled ones, have; else 1."""
    share, shares = float(positive.mean()), [1.0]
    for rows in (positive[is_null], positive[~is_null]):
        if rows.size >= _ONE_SIDED and rows.mean() >= _PURE:
            shares.append(share)
        elif rows.size >= _ONE_SIDED and rows.mean() <= 1 - _PURE:
            shares.append(1 - share)
    return min(shares)


def _by_rate(keys: NDArray[np.integer], positive: NDArray[np.bool_], half: NDArray[np.bool_]) -> float:
    """Return the mean AUC of both halves, whose rows have the rates of their values in the other half as scores."""
    _, number = np.unique(keys, return_inverse=True)
    size = int(number.max(initial=0)) + 1
    areas = []
    for rows in (half, ~half):
        others = ~rows
        count = np.bincount(number[others], minlength=size)
        ones = np.bincount(number[others & positive], minlength=size)
        rate = (ones + positive.mean()) / (count + 1)
        areas.append(area(rate[number[rows]], positive[rows]))
    return float(np.mean(areas))


def _bins(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of the bin of each value, [n]; nulls have their own."""
    filled = numbers[~np.isnan(numbers)]
    edges = np.unique(np.quantile(filled, np.arange(1, BINS) / BINS, method="lower")) if filled.size else filled
    return np.where(np.isnan(numbers), -1, np.searchsorted(edges, numbers))
