"""Quantiles of predicted probabilities and reliability diagrams, from a histogram of scores."""

import numpy as np
from numpy.typing import NDArray

from persia_cli.observe.scores import ScoreHistogram

PARTS = 20
"""Parts of a reliability diagram."""


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
