"""Differences between the training rows and the evaluation rows of a column."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.data.profile.column import ColumnSketch
from persia_cli.data.profile.tally import KeySample

BINS = 10
"""Bins of numbers, with equally many training rows in each; also the number of frequent ids with a bin each."""
LEAST_SHARE = 1e-4
"""The content assumed for an empty bin, so that the index stays finite."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Differences between the splits of a column."""

    stability: float | None
    """Population stability index: the sum over bins of (q - p) ln(q / p), p and q being the fractions of training and
    evaluation rows in a bin. Below 0.1 is called stable, above 0.25 shifted. Bins are tenths of the training rows for
    numbers; the ten most frequent ids and all others for ids; doubling lengths for lists; nulls have a bin."""
    unseen_ids: float | None
    """Fraction of the distinct evaluation ids that are not in the training rows."""
    unseen_lookups: float | None
    """Fraction of the evaluation look-ups, each occurrence of an id, whose id is not in the training rows."""
    unseen_error: float | None
    """Standard error of `unseen_ids`; 0 if no id was sampled."""


def drift_between(train: ColumnSketch, evaluation: ColumnSketch) -> Drift:
    """Compare the splits of a column; all fields are None if a split has no rows."""
    if not train.rows or not evaluation.rows:
        return Drift(None, None, None, None)
    unseen = _unseen(train.ids.sample, evaluation.ids.sample, evaluation.ids.count)
    return Drift(_stability(train, evaluation), *unseen)


def _unseen(train: KeySample, evaluation: KeySample, lookups: int) -> tuple[float | None, float | None, float | None]:
    level = max(train.level, evaluation.level)
    known, _ = train.at(level)
    keys, counts = evaluation.at(level)
    if not keys.size or not lookups:
        return None, None, None
    new = ~np.isin(keys, known)
    share = float(new.mean())
    error = math.sqrt(share * (1.0 - share) / keys.size) if level else 0.0
    return share, min(1.0, float(counts[new].sum()) * 2.0**level / lookups), error


def _stability(train: ColumnSketch, evaluation: ColumnSketch) -> float | None:
    match train.kind:
        case "number":
            bins = _number_bins(train, evaluation)
        case "integer" | "text":
            bins = _id_bins(train, evaluation)
        case "list":
            bins = train.lengths.counts.astype(float), evaluation.lengths.counts.astype(float)
        case "other" | "time":
            return None
    shares = [_with_nulls(sketch, counts) for sketch, counts in zip((train, evaluation), bins, strict=True)]
    p, q = (np.maximum(each, LEAST_SHARE) for each in shares)
    return float(((q - p) * np.log(q / p)).sum())


def _with_nulls(sketch: ColumnSketch, counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fraction of rows in each bin, and of nulls in one more."""
    total = counts.sum()
    share = sketch.nulls / sketch.rows
    return np.append(counts / total * (1.0 - share) if total else counts, share)


def _number_bins(train: ColumnSketch, evaluation: ColumnSketch) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    sample, other = train.numbers.sample, evaluation.numbers.sample
    if not sample.size:
        return np.zeros(1), np.array([float(other.size)])
    tenths = np.quantile(sample, np.arange(1, BINS) / BINS)
    edges = np.unique([tenths, np.nextafter(tenths, -np.inf)])  # a value equal to an edge gets its own bin
    one, two = (
        np.bincount(np.searchsorted(edges, each), minlength=edges.size + 1).astype(float) for each in (sample, other)
    )
    return one, two


def _id_bins(train: ColumnSketch, evaluation: ColumnSketch) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    top = train.ids.top(BINS)
    also = evaluation.ids.top(evaluation.ids.frequent.keys.size)
    one = np.array([*top.values(), train.ids.count - sum(top.values())], float)
    shared = [also.get(id_, 0) for id_ in top]
    two = np.array([*shared, evaluation.ids.count - sum(shared)], float)
    return one, two
