"""The quality of predictions, from parts that are merged, in memory that does not grow with the samples."""

import math
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from persia_cli.errors import PersiaError, WireError
from persia_cli.observe import cells
from persia_cli.wire.job_messages import ScoreCounts

Array = np.ndarray[Any, Any]
Columns = NDArray[np.float64]

MOST = 2**19
"""Largest number of cells of a task; if it has more distinct logits, neighbouring ones share a cell."""
MOST_IN_TRAINING = 2**14
"""The same limit for the figures of training lines, which are computed far more often."""
MOST_OF_ALL_TASKS = 2**21
"""Largest number of cells of all tasks together."""
GATHERED_AT = 3 * 2**15
"""Number of counts that are collected before they are sorted into cells; their arrays fit memory that is reused."""
PARTS = 20
"""Parts of a reliability diagram."""

_SUMS = 4
_LOSS, _WEIGHT, _PREDICTED, _OBSERVED = range(_SUMS)


class ScoreHistogram:
    """Weighted counts of negative and positive samples by predicted logit, and exact sums, per task.

    A label y in 0..1 with weight w counts w y as positive and w (1 - y) as negative. The sums are of w l, w, w p and
    w y, where l is the log loss of a sample and p its predicted probability.

    Figures that depend on the order of logits are exact while a task has at most `most` distinct logits. With more,
    neighbours share at least 2/3 `most` cells of about equal weight, which are narrower among the highest logits.
    Errors measured on normal and mixed logits of any scale: with the `most` of evaluations, AUC less than 2e-6 and
    average precision less than 1e-5; with that of training lines, AUC less than 2e-6 (2e-5 with a handful of
    positives, 1e-5 if classes alternate in the worst way) and average precision less than 5e-5.
    """

    def __init__(self, tasks: int, most: int = MOST) -> None:
        self.tasks = tasks
        self._most = tasks * min(most, MOST_OF_ALL_TASKS // tasks)
        self._sums = np.zeros((tasks, _SUMS))
        self._parts: list[tuple[cells.Codes, Columns]] = []
        """Codes of cells [n] and counts [2, n] of negatives and positives; after `_settle` one part, ascending."""
        self._loose = 0
        """Number of cells in all parts but the first."""

    def add(self, logits: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> None:
        """Count n samples: logits [n, T] (as float32), labels [n, T] in 0..1, weights [n] or None for ones.

        An infinite logit is the probability 0 or 1: its log loss is 0 if it is right and infinite otherwise. Raises
        PersiaError if a logit is NaN.
        """
        z, y = np.asarray(logits, np.float32), np.asarray(labels, np.float64)
        w = np.ones((len(z), 1)) if weights is None else np.asarray(weights, np.float64)[:, None]
        if np.isnan(z).any():
            raise PersiaError("a logit is NaN, so scores cannot be computed")
        positives = w * y
        size = np.abs(z.astype(np.float64))
        # One exponential, which never overflows, gives both the loss and the probability.
        small = np.exp(-size)
        losses = _product(size, np.where(z >= 0.0, 1.0 - y, y)) + np.log1p(small)
        predicted = np.where(z >= 0.0, 1.0, small) / (1.0 + small)
        columns = (_product(losses, w), np.broadcast_to(w, z.shape), w * predicted, positives)
        for task, sums in enumerate(self._sums):
            # Task by task, since the rounding of a sum must not depend on the number of tasks.
            sums += [float(np.ascontiguousarray(column[:, task]).sum()) for column in columns]
        self._keep(cells.cells_of(z).reshape(-1), np.stack([(w - positives).reshape(-1), positives.reshape(-1)]))

    def merge(self, other: Self) -> None:
        """Add another histogram of as many tasks; merging in rank order gives the same bits every time."""
        if other.tasks != self.tasks:
            raise ValueError(f"a histogram of {other.tasks} tasks cannot be merged into one of {self.tasks}")
        self._sums += other._sums
        self._keep(*other._settle())

    def encode(self) -> ScoreCounts:
        """Return what is counted, the counts that are not 0, and the sums [T, 4].

        What is counted is encoded as twice the code of a cell, plus one for its positives, ascending; see `decode`.
        """
        codes, counts = self._settle()
        where, positive = np.nonzero(counts.T)
        counted = codes[where] << np.uint64(1) | positive.astype(np.uint64)
        return ScoreCounts(counted, counts[positive, where], self._sums.copy())

    @classmethod
    def decode(cls, tasks: int, encoded: ScoreCounts) -> Self:
        """Return an encoded histogram, equal to the bit; raises WireError if the arrays are not valid."""
        made = cls(tasks)
        made.merge_encoded(encoded)
        return made

    @classmethod
    def restored(cls, tasks: int, most: int, encoded: ScoreCounts) -> Self:
        """Return an encoded histogram that goes on as the original would; raises WireError as `decode` does."""
        made = cls(tasks, most)
        made.merge_encoded(encoded)
        made._settle()
        return made

    def merge_encoded(self, encoded: ScoreCounts) -> None:
        """Add an encoded histogram of as many tasks; raises WireError if the arrays are not valid."""
        counted, counts, sums = encoded
        codes, positive = counted >> np.uint64(1), (counted & np.uint64(1)).astype(np.bool_)
        rising = bool((counted[1:] > counted[:-1]).all())
        if (
            not rising
            or not cells.are_cells(codes, self.tasks)
            or (counts.shape, sums.shape)
            != (
                counted.shape,
                self._sums.shape,
            )
        ):
            raise WireError(f"the encoded scores of {self.tasks} tasks are not valid")
        self._sums += sums
        self._keep(codes, np.stack([np.where(positive, 0.0, counts), np.where(positive, counts, 0.0)]))

    def _keep(self, codes: cells.Codes, counts: Columns) -> None:
        self._parts.append((codes, counts))
        self._loose += len(codes)
        if self._loose > max(self._most, GATHERED_AT):
            self._settle()

    def _settle(self) -> tuple[cells.Codes, Columns]:
        """Merge all parts into one, with at most the allowed number of cells, and return it."""
        if len(self._parts) != 1 or self._loose:
            codes = np.concatenate([np.empty(0, np.uint64), *(codes for codes, _ in self._parts)])
            counts = np.concatenate([np.empty((2, 0)), *(counts for _, counts in self._parts)], axis=1)
            settled = cells.gathered(codes, counts, self._most)
            self._parts, self._loose = [settled], 0
        return self._parts[0]

    def auc(self, task: int = 0) -> float | None:
        """Return the area under the ROC curve, ties counting half; None if there is only one class."""
        _, negatives, positives = self._of_task(task)
        pairs = float(negatives.sum() * positives.sum())
        if pairs <= 0.0:
            return None
        below = np.cumsum(negatives) - negatives / 2
        return float((positives * below).sum() / pairs)

    def counts(self, task: int = 0) -> tuple[NDArray[np.float32], Columns, Columns]:
        """Return the distinct logits, ascending, and the weighted counts of their negatives and positives."""
        codes, negatives, positives = self._of_task(task)
        return cells.middles(codes), negatives, positives

    def mean_prediction(self, task: int = 0) -> float | None:
        """Return the weighted mean of the predicted probabilities; None without weight."""
        return _ratio(self._sum(task, _PREDICTED), self.weight(task))

    def average_precision(self, task: int = 0) -> float | None:
        """Return the average precision: `sum_k (R_k - R_k-1) P_k` over descending thresholds; None without positives.

        This is the area under the precision-recall curve as scikit-learn and torchmetrics compute it; samples of equal
        logits share one threshold. In a cell of several logits both classes count as evenly mixed: precision is that in
        the middle of the cell.
        """
        rising, *counts = self._of_task(task)
        negatives, positives = (each[::-1] for each in counts)
        total = float(positives.sum())
        if total <= 0.0:
            return None
        weights = negatives + positives  # above 0 in every cell
        half = np.where(cells.are_single(rising[::-1]), 0.0, 0.5)
        found = np.cumsum(positives) - half * positives
        passed = np.cumsum(weights) - half * weights
        return float((positives * found / passed).sum() / total)

    def accuracy(self, task: int = 0) -> float | None:
        """Return the fraction of samples on the right side of probability 1/2; None without weight."""
        logits, negatives, positives = self.counts(task)
        right = np.where(logits >= 0.0, positives, negatives).sum()
        return _ratio(float(right), self.weight(task))

    def weight(self, task: int = 0) -> float:
        """Return the sum of weights."""
        return self._sum(task, _WEIGHT)

    def log_loss(self, task: int = 0) -> float | None:
        """Return the weighted mean of the binary cross-entropy in nats; None without weight."""
        return _ratio(self._sum(task, _LOSS), self.weight(task))

    def calibration(self, task: int = 0) -> float | None:
        """Return predicted over observed positives; None without positives."""
        return _ratio(self._sum(task, _PREDICTED), self._sum(task, _OBSERVED))

    def normalized_entropy(self, task: int = 0) -> float | None:
        """Return log loss over that of predicting the base rate (He et al., ADKDD 2014); None if there is one class."""
        loss, rate = self.log_loss(task), _ratio(self._sum(task, _OBSERVED), self.weight(task))
        if loss is None or rate is None or not 0.0 < rate < 1.0:
            return None
        return loss / -(rate * math.log(rate) + (1.0 - rate) * math.log1p(-rate))

    def _of_task(self, task: int) -> tuple[cells.Codes, Columns, Columns]:
        """Return the cells of a task, ascending, with their negatives and positives."""
        codes, (negatives, positives) = self._settle()
        ends = np.array([task, task + 1], np.uint64) << np.uint64(cells.TASK_BITS)
        start, stop = np.searchsorted(codes, ends)
        return codes[start:stop], negatives[start:stop], positives[start:stop]

    def _sum(self, task: int, which: int) -> float:
        return float(self._sums[task, which])


def _product(a: Columns, b: Columns) -> Columns:
    """Return a * b, with 0 times infinity as 0."""
    with np.errstate(invalid="ignore"):
        return np.where(b == 0.0, 0.0, a * b)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0.0 else None


def quantile(scores: ScoreHistogram, q: float, task: int = 0) -> float | None:
    """Return the probability that a fraction q of the weight does not exceed; None without weight."""
    logits, negatives, positives = scores.counts(task)
    if not len(logits):
        return None
    below = np.cumsum(negatives + positives)
    found = min(int(np.searchsorted(below, q * below[-1])), len(logits) - 1)
    return float(_probabilities(logits[found]))


def reliability(scores: ScoreHistogram, task: int = 0, parts: int = PARTS) -> dict[str, list[float]]:
    """Return a reliability diagram: mean predicted probability, fraction of positives and weight of each part.

    The samples are sorted by score and split into parts of about equal weight, so that rare high scores are visible
    (Niculescu-Mizil and Caruana, ICML 2005, with quantiles as bins). If many scores are equal there are fewer parts.
    """
    logits, negatives, positives = scores.counts(task)
    weights = negatives + positives
    below = np.cumsum(weights) - weights / 2
    total = float(weights.sum())
    if not total > 0.0:
        return {"predicted": [], "observed": [], "weight": []}
    part = np.minimum((below * (parts / total)).astype(np.int64), parts - 1)
    weight = np.bincount(part, weights, parts)
    there = weight > 0.0
    sums = np.bincount(part, weights * _probabilities(logits), parts), np.bincount(part, positives, parts)
    predicted, observed = (each[there] / weight[there] for each in sums)
    return {"predicted": predicted.tolist(), "observed": observed.tolist(), "weight": weight[there].tolist()}


def _probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the logistic function of logits, without overflow."""
    small = np.exp(-np.abs(logits.astype(np.float64)))
    return np.where(logits >= 0.0, 1.0, small) / (1.0 + small)


class RecentScores:
    """The scores of the last intervals, at most `intervals` of them.

    Merged scores cannot be removed again. So this is a queue of two stacks: one histogram of all newer intervals, and
    for each older interval a histogram from it up to the newest of the older ones. To drop the oldest interval is to
    drop its histogram. When no older intervals are left, the newer ones become the older ones. This takes about two
    merges for each interval, and one more for each call of `together`.
    """

    def __init__(
        self,
        tasks: int,
        intervals: int,
        most: int = MOST_IN_TRAINING,
        stacks: tuple[list[ScoreHistogram], list[ScoreHistogram], ScoreHistogram] | None = None,
    ) -> None:
        """Begin without any scores, or with the `stacks` of another one."""
        self._tasks, self._intervals, self._most = tasks, intervals, most
        self._older: list[ScoreHistogram] = []
        """Histograms from each older interval up to the newest of them; the last one begins at the oldest."""
        self._newer: list[ScoreHistogram] = []
        """Histograms of the newer intervals."""
        self._newer_together = self._merged()
        if stacks is not None:
            self._older, self._newer, self._newer_together = stacks

    @property
    def stacks(self) -> tuple[list[ScoreHistogram], list[ScoreHistogram], ScoreHistogram]:
        """The histograms of older intervals, those of newer ones, and all newer ones together."""
        return self._older, self._newer, self._newer_together

    def add(self, scores: ScoreHistogram) -> None:
        """Add the scores of an interval; over the limit, drop those of the oldest interval."""
        self._newer.append(scores)
        if len(self._newer) + len(self._older) <= self._intervals:
            self._newer_together.merge(scores)
            return
        if self._older:
            self._newer_together.merge(scores)
        else:
            for each in reversed(self._newer):
                self._older.append(self._merged(*self._older[-1:], each))
            self._newer, self._newer_together = [], self._merged()
        self._older.pop()

    def together(self) -> ScoreHistogram:
        """Return the scores of all these intervals."""
        return self._merged(*self._older[-1:], self._newer_together)

    def _merged(self, *parts: ScoreHistogram) -> ScoreHistogram:
        whole = ScoreHistogram(self._tasks, self._most)
        for part in parts:
            whole.merge(part)
        return whole
