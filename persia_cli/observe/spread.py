"""How predicted probabilities are spread, and how often what they say comes true, told from a histogram of scores."""

import numpy as np
from numpy.typing import NDArray

from persia_cli.observe.scores import BINS, LIMIT, ScoreHistogram

PARTS = 20
"""Parts of a reliability diagram."""

_CENTRES = (np.arange(BINS) + 0.5) * (2 * LIMIT / BINS) - LIMIT
PROBABILITIES: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-_CENTRES))
"""Probability in the middle of each bin."""


def quantile(scores: ScoreHistogram, q: float, task: int = 0) -> float | None:
    """Return the probability that a share q of the weight does not exceed, to the width of a bin; None without any."""
    below = np.cumsum(sum(scores.counts(task)))
    if not below[-1] > 0.0:
        return None
    sought = max(q * float(below[-1]), np.finfo(np.float64).tiny)  # no bin that is empty
    return float(PROBABILITIES[min(int(np.searchsorted(below, sought)), BINS - 1)])


def reliability(scores: ScoreHistogram, task: int = 0, parts: int = PARTS) -> dict[str, list[float]]:
    """Return a reliability diagram: mean predicted probability, share of positives and weight of parts of the samples.

    The samples are in order of score and the parts of about equal weight, so that rare high scores show as well
    (Niculescu-Mizil and Caruana, ICML 2005, with quantiles as bins). Where scores are alike there are fewer parts.
    """
    negatives, positives = scores.counts(task)
    weights = negatives + positives
    below = np.cumsum(weights) - weights / 2
    total = float(weights.sum())
    if not total > 0.0:
        return {"predicted": [], "observed": [], "weight": []}
    part = np.minimum((below * (parts / total)).astype(np.int64), parts - 1)
    weight = np.bincount(part, weights, parts)
    there = weight > 0.0
    sums = np.bincount(part, weights * PROBABILITIES, parts), np.bincount(part, positives, parts)
    predicted, observed = (each[there] / weight[there] for each in sums)
    return {"predicted": predicted.tolist(), "observed": observed.tolist(), "weight": weight[there].tolist()}
