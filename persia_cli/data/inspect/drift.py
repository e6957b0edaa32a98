"""Differences between the training rows and the evaluation rows of a column."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.data.inspect.ids import IdCounts

BINS = 10
"""Bins of numbers, with equally many training rows in each; also the number of frequent ids with a bin each."""
LEAST_FRACTION = 1e-4
"""The content assumed for an empty bin, so that the index stays finite."""

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Drift:
    """Differences between the splits of a column; None where a split has no rows."""

    stability: float | None = None
    """Population stability index: the sum over bins of (q - p) ln(q / p), p and q being the fractions of training and
    evaluation rows in a bin. Below 0.1 is called stable, above 0.25 shifted. Bins are tenths of the training rows for
    numbers; the ten most frequent ids and all others for ids; doubling lengths for lists; nulls have a bin."""
    unseen_ids: float | None = None
    """Fraction of the distinct evaluation ids that are not in the training rows."""
    unseen_lookups: float | None = None
    """Fraction of the evaluation look-ups, each occurrence of an id, whose id is not in the training rows."""
    unseen_error: float | None = None
    """Standard error of `unseen_ids`; 0 if all ids are counted."""


def drift_of(
    rows: Counts,
    nulls: Counts,
    ids: IdCounts | None,
    numbers: list[NDArray[np.float64]] | None = None,
    lengths: Counts | None = None,
) -> Drift:
    """Compare the splits of a column, from its rows and nulls in each and from its numbers, lists or else ids."""
    if not rows.all():
        return Drift()
    bins = lengths
    if numbers is not None:
        bins = _number_bins(*numbers)
    elif bins is None and ids is not None:
        frequent = ids.counts[ids.top(BINS, ids.counts[:, 0])].T
        bins = np.column_stack([frequent, ids.totals - frequent.sum(1)])
    stability = None if bins is None else _stability(bins, nulls / rows)
    return Drift(stability, *(_unseen(ids) if ids is not None else ()))


def _stability(bins: Counts, nulls: NDArray[np.float64]) -> float:
    totals = bins.sum(1, keepdims=True)
    filled = bins / np.maximum(totals, 1) * (1.0 - nulls[:, None])
    p, q = np.maximum(np.column_stack([filled, nulls]), LEAST_FRACTION)
    return float(((q - p) * np.log(q / p)).sum())


def _number_bins(train: NDArray[np.float64], evaluation: NDArray[np.float64]) -> Counts:
    if not train.size:
        return np.array([[0], [evaluation.size]])
    tenths = np.quantile(train, np.arange(1, BINS) / BINS)
    edges = np.unique([tenths, np.nextafter(tenths, -np.inf)])  # a value equal to an edge gets its own bin
    return np.array(
        [np.bincount(np.searchsorted(edges, each), minlength=edges.size + 1) for each in (train, evaluation)]
    )


def _unseen(ids: IdCounts) -> tuple[float | None, float | None, float | None]:
    sample = ids.sample(ids.level)
    evaluates = sample.counts[:, 1] > 0
    if not evaluates.any():
        return None, None, None
    new = evaluates & (sample.counts[:, 0] == 0)
    fraction = float(new.sum() / evaluates.sum())
    error = 0.0 if ids.is_exact else math.sqrt(fraction * (1.0 - fraction) / int(evaluates.sum()))
    return fraction, min(1.0, float(sample.counts[new, 1].sum()) * 2.0**ids.level / float(ids.totals[1])), error
