"""Quality of predictions, gathered in parts and merged exactly, in memory that does not grow with the samples."""

import math
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from persia_cli.errors import PersiaError, WireError

BINS = 2**16
LIMIT = 16.0
"""Logits are binned evenly over [-LIMIT, LIMIT), those beyond fall in the first or last bin.

A bin is 2**-11 of a logit wide: as fine near probability 0 or 1 (down to 1e-7) as in the middle, relative to p (1 - p).
"""
_SUMS = 4
_LOSS, _WEIGHT, _PREDICTED, _OBSERVED = range(_SUMS)
_TASK = 2 * BINS + _SUMS


class ScoreHistogram:
    """Weighted counts of negative and positive samples by predicted logit, and exact sums beside them, per task.

    All figures of one task are one stretch of float64: BINS counts of negatives, BINS of positives, then the sums of
    w l, w, w p and w y. A label y in 0..1 counts w y as positive and w (1 - y) as negative.
    """

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self._values = np.zeros((tasks, _TASK), np.float64)

    def add(self, logits: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> None:
        """Count n samples: logits and labels [n, T], weights [n] or None for ones.

        Raises PersiaError for a logit that is NaN or infinite.
        """
        z, y = np.asarray(logits, np.float64), np.asarray(labels, np.float64)
        w = np.ones(len(z)) if weights is None else np.asarray(weights, np.float64)
        if not np.isfinite(z).all():
            raise PersiaError("a logit is NaN or infinite and has no place among the scores")
        bins = np.clip((z + LIMIT) * (BINS / (2 * LIMIT)), 0, BINS - 1).astype(np.int64)
        # One exponential gives both the loss and the probability, and overflows for no logit.
        small = np.exp(-np.abs(z))
        losses = np.maximum(z, 0.0) + np.log1p(small) - y * z
        predicted = np.where(z >= 0.0, 1.0, small) / (1.0 + small)
        w = w[:, None]
        positives = w * y
        negatives = w - positives
        for task, values in enumerate(self._values):
            np.add.at(values, bins[:, task], negatives[:, task])
            np.add.at(values, bins[:, task] + BINS, positives[:, task])
            # Each task for itself: how a sum is rounded must not depend on how many tasks there are.
            columns = (w[:, 0] * losses[:, task], w, w[:, 0] * predicted[:, task], positives[:, task])
            values[-_SUMS:] += [float(column.sum()) for column in columns]

    def merge(self, other: Self) -> None:
        """Add another histogram of as many tasks; merging in rank order gives the same bits every time."""
        if other.tasks != self.tasks:
            raise ValueError(f"a histogram of {other.tasks} tasks cannot be merged into one of {self.tasks}")
        self._values += other._values

    def encode(self) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
        """Return the figures that are not zero: their positions, rising, and their values; `decode` takes them back."""
        flat = self._values.reshape(-1)
        bins = np.flatnonzero(flat != 0.0)  # many times faster than of numbers
        return bins.astype(np.uint32), flat[bins]

    @classmethod
    def decode(cls, tasks: int, bins: NDArray[np.uint32], counts: NDArray[np.float64]) -> Self:
        """Rebuild an encoded histogram to the bit; raises WireError for positions that no such histogram has."""
        made = cls(tasks)
        made.merge_encoded(bins, counts)
        return made

    def merge_encoded(self, bins: NDArray[np.uint32], counts: NDArray[np.float64]) -> None:
        """Add an encoded histogram of as many tasks, as `merge` does; raises WireError as `decode` does."""
        flat = self._values.reshape(-1)
        rising = bool((bins[1:] > bins[:-1]).all())
        if len(bins) != len(counts) or not rising or (len(bins) and int(bins[-1]) >= flat.size):
            raise WireError(f"scores of {self.tasks} tasks came with positions that do not fit")
        flat[bins] += counts

    def auc(self, task: int = 0) -> float | None:
        """Area under the ROC curve, ties within a bin counting half; None while only one class was seen."""
        negatives, positives = self._occupied(task)
        pairs = float(negatives.sum() * positives.sum())
        if pairs <= 0.0:
            return None
        below = np.cumsum(negatives) - negatives / 2
        return float((positives * below).sum() / pairs)

    def counts(self, task: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weighted counts of negatives and positives in each of the BINS."""
        negatives, positives = self._values[task, : 2 * BINS].reshape(2, BINS)
        return negatives, positives

    def mean_prediction(self, task: int = 0) -> float | None:
        """Weighted mean of the predicted probabilities; None without weight."""
        return _ratio(self._sum(task, _PREDICTED), self.weight(task))

    def average_precision(self, task: int = 0) -> float | None:
        """Area under the precision-recall curve as a sum of steps, `sum_k (R_k - R_k-1) P_k` over falling thresholds.

        That is the average precision of scikit-learn and torchmetrics; the samples of a bin share one threshold. None
        while no positive was seen.
        """
        negatives, positives = (counts[::-1] for counts in self._occupied(task))
        found = np.cumsum(positives)
        if not found.size or found[-1] <= 0.0:
            return None
        return float((positives * found / (found + np.cumsum(negatives))).sum() / found[-1])

    def accuracy(self, task: int = 0) -> float | None:
        """Share of samples on the right side of probability 1/2; None without weight."""
        negatives, positives = self._values[task, : 2 * BINS].reshape(2, BINS)
        right = negatives[: BINS // 2].sum() + positives[BINS // 2 :].sum()
        return _ratio(float(right), self.weight(task))

    def weight(self, task: int = 0) -> float:
        """Sum of weights."""
        return self._sum(task, _WEIGHT)

    def log_loss(self, task: int = 0) -> float | None:
        """Weighted mean of the binary cross-entropy in nats; None without weight."""
        return _ratio(self._sum(task, _LOSS), self.weight(task))

    def calibration(self, task: int = 0) -> float | None:
        """Predicted over observed positives; None while no positive was seen."""
        return _ratio(self._sum(task, _PREDICTED), self._sum(task, _OBSERVED))

    def normalized_entropy(self, task: int = 0) -> float | None:
        """Log loss over that of always predicting the base rate (He et al., ADKDD 2014); None for one class only."""
        loss, rate = self.log_loss(task), _ratio(self._sum(task, _OBSERVED), self.weight(task))
        if loss is None or rate is None or not 0.0 < rate < 1.0:
            return None
        return loss / -(rate * math.log(rate) + (1.0 - rate) * math.log1p(-rate))

    def _occupied(self, task: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the negatives and the positives of the bins that hold any, by rising logit."""
        counts = self._values[task, : 2 * BINS].reshape(2, BINS)
        occupied = np.flatnonzero((counts[0] != 0.0) | (counts[1] != 0.0))
        return counts[0, occupied], counts[1, occupied]

    def _sum(self, task: int, which: int) -> float:
        return float(self._values[task, 2 * BINS + which])


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0.0 else None
