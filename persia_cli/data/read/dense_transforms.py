"""Transforms of dense numbers and buckets, by statistics of the training rows that are kept with the data set."""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.data.read.arrow_types import UnusableValueError
from persia_cli.data.read.bad_rows import bad_rows_allowed
from persia_cli.data.read.row_groups import RowGroup, RowGroupStream
from persia_cli.data.read.splits import TrainingRows
from persia_cli.data.read.times import from_format, remedy, time_numbers
from persia_cli.data.read.values import float_values
from persia_cli.errors import DataError

Floats = NDArray[np.float64]
Fitted = DenseFeature | SparseFeature
"""A feature whose transform or buckets need statistics."""

FAR = 20.0
"""An absolute value above this is far from 1: it dominates the other inputs of a network."""
TAIL = 10.0
"""Deviations from the mean beyond which a value belongs to a long tail."""
READ_ROWS = 1 << 22
"""Training rows, about, from which the transform of a column is chosen."""
VECTORS = 1024
"""Lists of numbers that are looked at in each column of such."""
SAMPLED_ROWS = 1 << 18
"""Rows that quantiles are computed from, approximately: evenly spaced over the training rows."""


def numbers_of(column: Any, feature: DenseFeature | SparseFeature) -> Floats:
    """Return the numbers of a column that a dense feature or buckets are made of, [n], NaN for null.

    Raises UnusableValueError for a text that is no time where the feature is of times.
    """
    column = from_format(column, feature.format)
    if isinstance(feature, DenseFeature):
        return time_numbers(column, feature.part) if feature.values == "time" else float_values(column)
    return time_numbers(column) if feature.ids == "time" else float_values(column)


def transform(values: Floats, feature: DenseFeature) -> Floats:
    """Return the transformed numbers of a dense feature, [n], or [n, bins] if it is `piecewise`; NaN stays NaN.

    `log1p` is sign(x) log(1 + |x|), so that negative numbers keep their order; `standardise` and parts of times are
    (x - mean) / deviation.
    """
    if feature.transform == "piecewise":
        assert isinstance(feature.bins, tuple)
        return piecewise(values, feature.bins)
    if feature.transform == "log1p":
        logs: Floats = np.copysign(np.log1p(np.abs(values)), values)
        return logs
    if feature.is_standardised:
        assert feature.mean is not None
        assert feature.deviation is not None
        standard: Floats = (values - feature.mean) / feature.deviation
        return standard
    return values


def piecewise(values: Floats, edges: Sequence[float]) -> Floats:
    """Return how far n values are through each of T bins with T + 1 ascending edges, [n, T]: 0 before it, 1 behind it.

    The first bin has no beginning and the last one no end, so that they tell values outside of all edges from each
    other. Gorishniy, Rubachev and Babenko, "On Embeddings for Numerical Features in Tabular Deep Learning" (2022),
    equation 1. A linear layer makes of it a piecewise linear function of the value.
    """
    bounds = np.asarray(edges, np.float64)
    through = (values[:, None] - bounds[:-1]) / np.diff(bounds)
    through[:, 1:] = np.maximum(through[:, 1:], 0.0)
    through[:, :-1] = np.minimum(through[:, :-1], 1.0)
    return through


def bucket_ids(values: Floats, boundaries: Sequence[float], missing: np.uint64) -> NDArray[np.uint64]:
    """Return 1 + the number of ascending boundaries that each value has reached, `missing` for NaN."""
    numbers = np.searchsorted(np.asarray(boundaries, np.float64), values, side="right").astype(np.uint64) + np.uint64(1)
    return np.where(np.isnan(values), missing, numbers)


def fit(dataset: ParquetDataset, rows: TrainingRows) -> ParquetDataset:
    """Return the data set with means, deviations, edges and boundaries of its training rows, which are read once.

    Only the columns of features without these statistics are read, if there are any. Raises DataError if there are no
    training rows, or if a column has the same value in all of them.
    """
    dense, buckets = _open_dense(dataset), _open_buckets(dataset)
    features: dict[str, Fitted] = {f"dense {feature.name}": feature for feature in dense}
    features |= {f"sparse {bucket.name}": bucket for bucket in buckets}
    if not features:
        return dataset
    if not rows.total:
        first = next(iter(features.values())).name
        raise DataError(
            f"{first} is transformed by statistics of the training rows, but there are none here; train first, or give "
            "mean and deviation, the edges of bins, or the boundaries of buckets"
        )
    moments, samples = _read(rows, features, bad_rows_allowed(dataset))
    return dataset.model_copy(
        update={
            "dense": tuple(_with_edges(_with_moments(feature, moments), samples) for feature in dataset.dense),
            "sparse": tuple(_with_boundaries(feature, samples) for feature in dataset.sparse),
        }
    )


def rescaled(dataset: ParquetDataset, rows: TrainingRows, scales: Mapping[str, float]) -> ParquetDataset:
    """Return the data set with transforms for columns of numbers far from 1 that have none, and `rescale` off.

    `scales` has the greatest absolute value of columns, infinity where it is not known: then the rows decide that are
    read, those of as many row groups as have READ_ROWS.
    """
    known = {
        feature.name: scales.get(feature.name, math.inf)
        for feature in dataset.dense_features
        if feature.transform is None and feature.width is None
    }
    far: dict[str, Fitted] = {
        feature.name: feature for feature in dataset.dense_features if known.get(feature.name, 0.0) > FAR
    }
    dense = dataset.dense
    if far and rows.total:
        moments, _ = _read(rows.some(-(-rows.total // READ_ROWS)), far)
        chosen = {name: _chosen(name, moments[name]) for name in far if min(known[name], moments[name].largest) > FAR}
        dense = tuple(
            chosen.get(feature.name, given)
            for feature, given in zip(dataset.dense_features, dataset.dense, strict=True)
        )
    return dataset.model_copy(update={"dense": dense, "rescale": False})


def without_none(dataset: ParquetDataset) -> ParquetDataset:
    """Return the data set whose columns that are to stay unchanged have no transform."""
    dense = tuple(
        feature.model_copy(update={"transform": None})
        if isinstance(feature, DenseFeature) and feature.transform == "none"
        else feature
        for feature in dataset.dense
    )
    return dataset.model_copy(update={"dense": dense})


def far_vectors(dataset: ParquetDataset, rows: TrainingRows) -> tuple[str, ...]:
    """Return the dense columns of lists with numbers far from 1 in the first rows; no transform is of lists."""
    vectors = (feature for feature in dataset.dense_features if feature.width is not None)
    names = [feature.name for feature in vectors if feature.times_of is None]
    if not names or not rows.groups:
        return ()
    stream = RowGroupStream(rows.data.filesystem, rows.groups[0], names, VECTORS)
    try:
        table = stream.read()
    finally:
        stream.close()
    scales = {name: np.abs(float_values(pc.list_flatten(table.column(name)))) for name in names}
    return tuple(name for name, numbers in scales.items() if numbers[np.isfinite(numbers)].max(initial=0.0) > FAR)


def transform_for(mean: float, deviation: float, largest: float) -> Literal["log1p", "standardise"]:
    """Return the transform that brings numbers near 1: log1p if the largest are far from the mean."""
    is_far = not 0.0 < deviation < math.inf or largest > abs(mean) + TAIL * deviation
    return "log1p" if is_far else "standardise"


def _chosen(name: str, known: "_Moments") -> DenseFeature:
    """Return a column with the transform that brings its values near 1."""
    if transform_for(known.mean, known.deviation, known.largest) == "log1p":
        return DenseFeature(name=name, values="number", transform="log1p")
    return DenseFeature(name=name, values="number", transform="standardise", mean=known.mean, deviation=known.deviation)


def _read(
    rows: TrainingRows, features: Mapping[str, Fitted], allowed: int = 0
) -> tuple[dict[str, "_Moments"], dict[str, list[Floats]]]:
    """Return moments and samples of features, over the training rows of row groups, `allowed` bad ones left out."""
    moments = {key: _Moments() for key in features}
    samples: dict[str, list[Floats]] = {key: [] for key in features}
    every = -(-rows.total // SAMPLED_ROWS)
    columns = {each.name if isinstance(each, DenseFeature) else each.column_name for each in features.values()}
    for group, table, trained in rows.read(sorted(columns)):
        for key, feature in features.items():
            values = _finite(feature, group, table, trained, allowed)
            moments[key].add(values)
            samples[key].append(values[::every])
    return moments, samples


class _Moments:
    """Mean and squared deviation of a stream of numbers (Chan, Golub and LeVeque, 1979).

    They are computed from the differences to the first number: for equal numbers these are exactly 0, and numbers that
    are far from 0 but close to each other lose no digits.
    """

    def __init__(self) -> None:
        self.count, self._first, self._mean, self.squares = 0, 0.0, 0.0, 0.0
        self.largest = 0.0
        """Greatest absolute value."""

    @property
    def mean(self) -> float:
        """Mean of the numbers."""
        return self._first + self._mean

    @property
    def deviation(self) -> float:
        """Standard deviation of the numbers; 0 without any."""
        return float(np.sqrt(self.squares / self.count)) if self.count else 0.0

    def add(self, values: Floats) -> None:
        """Add finite numbers."""
        if not values.size:
            return
        self.largest = max(self.largest, float(np.abs(values).max()))
        if not self.count:
            self._first = float(values[0])
        with np.errstate(over="ignore", invalid="ignore"):
            values = values - self._first
            mean = float(values.mean())
            squares = float(((values - mean) ** 2).sum())
        total = self.count + values.size
        difference = mean - self._mean
        self.squares += squares + difference * difference * self.count * values.size / total
        self._mean += difference * values.size / total
        self.count = total


def _open_dense(dataset: ParquetDataset) -> list[DenseFeature]:
    return [
        feature
        for feature in dataset.dense_features
        if (feature.is_standardised and feature.mean is None) or isinstance(feature.bins, int)
    ]


def _open_buckets(dataset: ParquetDataset) -> list[SparseFeature]:
    return [feature for feature in dataset.sparse if isinstance(feature.buckets, int)]


def _finite(feature: Fitted, group: RowGroup, table: Any, rows: NDArray[np.int64] | None, allowed: int) -> Floats:
    """Return a feature's finite numbers in some rows of a table; raises DataError for more than `allowed` others."""
    name = feature.name if isinstance(feature, DenseFeature) else feature.column_name
    column, bad = table.column(name), 0
    while True:
        try:
            values = numbers_of(column, feature)
            break
        except UnusableValueError as error:
            bad += error.indices.size
            if bad > allowed:
                position = group.place_of(error.index)
                text = f"{group}: {error} in {position} of column {name}; {remedy(feature.format)}"
                raise DataError(text) from error
            column = pc.if_else(pa.array(np.isin(np.arange(len(column)), error.indices)), None, column)
    values = values if rows is None else values[rows]
    return values[np.isfinite(values)]


def _with_moments(feature: str | DenseFeature, moments: dict[str, _Moments]) -> str | DenseFeature:
    if isinstance(feature, str) or not feature.is_standardised or feature.mean is not None:
        return feature
    known = moments[f"dense {feature.name}"]
    deviation = known.deviation
    if not deviation or not np.isfinite(deviation):
        raise DataError(
            f"dense feature {feature.name} cannot be standardised: its values are the same, or too large, in all "
            f"training rows; leave it out{'' if feature.values == 'time' else ', or use transform: log1p'}"
        )
    return feature.model_copy(update={"mean": known.mean, "deviation": deviation})


def _with_edges(feature: str | DenseFeature, samples: dict[str, list[Floats]]) -> str | DenseFeature:
    if isinstance(feature, str) or not isinstance(feature.bins, int):
        return feature
    values = np.concatenate(samples[f"dense {feature.name}"])
    fractions = np.linspace(0.0, 1.0, feature.bins + 1)
    edges = np.unique(np.quantile(values, fractions, method="inverted_cdf")) if values.size else values
    if edges.size < 2:
        raise DataError(
            f"dense feature {feature.name} cannot have bins: its values are missing, or equal, in all training rows; "
            "leave it out, or give the edges of its bins"
        )
    return feature.model_copy(update={"bins": tuple(map(float, edges))})


def _with_boundaries(feature: SparseFeature, samples: dict[str, list[Floats]]) -> SparseFeature:
    if not isinstance(feature.buckets, int):
        return feature
    distinct, counts = np.unique(np.concatenate(samples[f"sparse {feature.name}"]), return_counts=True)
    if distinct.size < 2:
        raise DataError(
            f"sparse feature {feature.name} cannot have buckets: its values are missing, or equal, in all training "
            "rows; leave it out, or give the boundaries of its buckets"
        )
    # Of the fractions of rows that may lie before a boundary, those next to k / buckets.
    before = np.cumsum(counts)[:-1] / counts.sum()
    wanted = np.arange(1, feature.buckets) / feature.buckets
    above = np.minimum(np.searchsorted(before, wanted), before.size - 1)
    below = np.maximum(above - 1, 0)
    nearest = np.where(wanted - before[below] <= before[above] - wanted, below, above)
    boundaries = distinct[1:][np.unique(nearest)]
    return feature.model_copy(update={"buckets": tuple(map(float, boundaries))})


def scale_of(statistics: Any) -> float:
    """Return the greatest absolute value by the statistics of a column, infinity if they do not show it.

    Those of float16, of columns with an infinity, and of files that were written without statistics do not.
    """
    if statistics is None or not statistics.has_min_max:
        return math.inf
    ends = statistics.min, statistics.max
    return max(abs(float(end)) if isinstance(end, int | float | Decimal) else math.inf for end in ends)
