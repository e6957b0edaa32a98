"""Slow twins of the metrics of scores: over all samples, sorted, in float64."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def auc(logits: Array, labels: Array, weights: Array) -> float | None:
    """AUC of n samples by sorting, ties counting half; None for one class only."""
    _, where = np.unique(logits, return_inverse=True)
    positives = np.bincount(where, weights * labels)
    negatives = np.bincount(where, weights * (1.0 - labels))
    pairs = positives.sum() * negatives.sum()
    return float((positives * (np.cumsum(negatives) - negatives / 2)).sum() / pairs) if pairs > 0.0 else None


def average_precision(logits: Array, labels: Array, weights: Array) -> float | None:
    """Average precision of n samples by sorting, ties sharing a threshold; None without positives."""
    _, where = np.unique(-logits, return_inverse=True)
    positives = np.bincount(where, weights * labels)
    found, passed = np.cumsum(positives), np.cumsum(np.bincount(where, weights))
    some = positives > 0.0
    return float((positives * found)[some] @ (1.0 / passed[some]) / found[-1]) if some.any() else None


def accuracy(logits: Array, labels: Array, weights: Array) -> float | None:
    """Share of weight on the right side of logit 0; None without weight."""
    right = np.where(logits >= 0.0, labels, 1.0 - labels)
    return float((weights * right).sum() / weights.sum()) if weights.sum() > 0.0 else None
