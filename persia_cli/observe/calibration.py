"""The calibration of probabilities: a slope and a shift of a label's logits that give the least log loss.

Platt, "Probabilistic outputs for support vector machines" (1999). A slope above 0 keeps all ranks, and so AUC.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import Bce, Loss
from persia_cli.control.calibration import Calibration
from persia_cli.data.read.predictions import predictions
from persia_cli.metric import FIGURES, keys_of
from persia_cli.observe.scores import QUALITY, ScoreHistogram

PENALTY = math.log(100.0)
"""Nats by which the log likelihood of all samples must rise.

Two numbers that are fitted to a model without fault reach it once in 100 times: twice the rise is then distributed as
chi-squared with two degrees of freedom.
"""
OF_RANKS = ("auc", "pr_auc")
"""Metrics that no correction changes."""
MAX_CELLS = 2**14
"""Cells of neighbouring logits; with more logits, numbers are fitted to the mean of each cell, which is faster."""
MAX_ITERATIONS, MIN_PART = 50, 1e-9
MAX_SLOPE, MAX_SHIFT = 1e3, 1e2
"""Bounds beyond which numbers are fitted to chance: few samples, or hardly any that the classes share."""

Columns = NDArray[np.float64]


def is_calibrated(loss: Loss) -> bool:
    """Return whether a label with this loss is corrected: its outputs are logits, and no weight moves them on purpose.

    Losses of ranks and `focal` are too, since their outputs are no log odds otherwise.
    """
    return loss.LINK == "logistic" and not (isinstance(loss, Bce) and loss.pos_weight != 1.0)


def calibrated(
    losses: Mapping[str, Loss], scores: ScoreHistogram, samples: int
) -> tuple[tuple[Calibration, ...], dict[str, float | None]]:
    """Return the corrections of labels that lower the log loss, and the metrics that they change by key.

    `losses` are those of the labels, in the order of tasks. However much the `samples` weigh, they count as no more
    than their number.
    """
    corrections: list[Calibration] = []
    metrics: dict[str, float | None] = {}
    for task, (label, loss) in enumerate(losses.items()):
        logits, negatives, positives = scores.counts(task)
        numbers = fitted(logits, negatives, positives) if is_calibrated(loss) else None
        if numbers is None:
            continue
        slope, shift = map(np.float32, numbers)
        with_them = corrected(scores, task, *numbers)
        before, after = scores.log_loss(task), with_them.log_loss()
        assert before is not None
        assert after is not None
        if (before - after) * min(scores.weight(task), samples) > PENALTY:
            corrections.append(Calibration(task, label, float(slope), float(shift), (before, after)))
            names = [name for name in QUALITY if name in FIGURES[loss.LINK] and name not in OF_RANKS]
            metrics |= {keys_of(name, list(losses))[task]: QUALITY[name](with_them) for name in names}
    return tuple(corrections), metrics


def corrected(scores: ScoreHistogram, task: int, slope: float, shift: float) -> ScoreHistogram:
    """Return the scores of a task with a correction of its logits, in float32."""
    logits, negatives, positives = scores.counts(task)
    return ScoreHistogram.of_counts(logits * np.float32(slope) + np.float32(shift), negatives, positives)


def fitted(logits: NDArray[np.float32], negatives: Columns, positives: Columns) -> tuple[float, float] | None:
    """Return slope and shift of the least log loss.

    Arguments are all [n]: ascending logits, and the weighted counts of their classes. None if there is no best pair
    with a slope above 0: samples of one class, equal logits, classes that a threshold separates, or ranks worse than
    chance.
    """
    if not (negatives.any() and positives.any() and np.isfinite(logits).all()):
        return None
    if logits[positives > 0.0][0] >= logits[negatives > 0.0][-1]:
        return None
    cells = np.arange(0, len(logits), -(-len(logits) // MAX_CELLS))
    sums = np.add.reduceat(logits * (negatives + positives), cells)
    negatives, positives = np.add.reduceat(negatives, cells), np.add.reduceat(positives, cells)
    weights = negatives + positives
    # Centred and scaled, so that Newton's method is well conditioned whatever the logits are.
    z, total = sums / weights, float(weights.sum())
    centre = float((weights * z).sum()) / total
    scale = math.sqrt(float((weights * (z - centre) ** 2).sum()) / total)
    if not scale > 1e-9 * max(1.0, abs(centre)):
        return None
    pair = _of_least_loss((z - centre) / scale, negatives, positives)
    if pair is None:
        return None
    slope, shift = pair[0] / scale, pair[1] - pair[0] / scale * centre
    return (slope, shift) if 1.0 / MAX_SLOPE < slope < MAX_SLOPE and abs(shift) < MAX_SHIFT else None


def _of_least_loss(z: Columns, negatives: Columns, positives: Columns) -> tuple[float, float] | None:
    """Return slope and shift of the least log loss, by Newton's method from the mean label; None if it fails."""
    weights = negatives + positives
    slope, shift = 0.0, math.log(float(positives.sum()) / float(negatives.sum()))
    loss = _loss(slope * z + shift, negatives, positives)
    for _ in range(MAX_ITERATIONS):
        p = predictions(slope * z + shift, "logistic")
        error, curvature = weights * p - positives, weights * p * (1.0 - p)
        # Sums of products, since BLAS divides a dot product among threads, which costs more on a busy machine.
        of_slope, of_shift = float((error * z).sum()), float(error.sum())
        first, across, second = float((curvature * z * z).sum()), float((curvature * z).sum()), float(curvature.sum())
        if not (determinant := first * second - across * across) > 0.0:
            return None
        by_slope = (second * of_slope - across * of_shift) / determinant
        by_shift = (first * of_shift - across * of_slope) / determinant
        if of_slope * by_slope + of_shift * by_shift < 1e-10 * float(weights.sum()):
            return slope - by_slope, shift - by_shift  # the error is the square of that now
        part = 1.0
        while (
            not (lower := _loss((slope - part * by_slope) * z + shift - part * by_shift, negatives, positives)) < loss
        ):
            part /= 2.0
            if part < MIN_PART:
                return None
        slope, shift, loss = slope - part * by_slope, shift - part * by_shift, lower
    return None


def _loss(z: Columns, negatives: Columns, positives: Columns) -> float:
    return float((negatives * np.logaddexp(0.0, z) + positives * np.logaddexp(0.0, -z)).sum())
