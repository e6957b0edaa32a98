"""The comparison of a sweep's settings: means over seeds, and paired differences to a baseline."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from persia_cli.observe.outcome import JobMetrics
from persia_cli.sweeps.points import Setting

BySeed = Mapping[str, JobMetrics]
"""The metrics of a setting's finished points, by seed as written."""

SURE = 0.95
"""Confidence level: the probability that an interval contains the true mean."""


@dataclass(frozen=True)
class Mean:
    """A mean over seeds."""

    mean: float
    error: float | None
    """Standard error: sample standard deviation over the square root of the number; None for a single value."""
    count: int

    @property
    def margin(self) -> float | None:
        """Half the width of the 95 % confidence interval, by Student's t; None for a single value."""
        return None if self.error is None else half_width(self.count) * self.error

    @property
    def is_not_zero(self) -> bool | None:
        """True if the confidence interval excludes 0; None for a single value, which has no interval."""
        return None if self.margin is None else abs(self.mean) > self.margin


@dataclass(frozen=True)
class Row:
    """One setting of a sweep over its seeds; a metric that no finished point has is None."""

    setting: Setting
    finished: int
    failed: int
    samples_per_s: Mean | None
    quality: dict[str, Mean | None]
    """Mean by metric; settings are compared by the first one."""
    judged_steps: tuple[int, ...]
    """Distinct steps of the evaluations that count for the points, ascending."""
    steps: int | None
    staleness_max: int | None
    staleness_fraction: float | None
    baseline: Setting | None
    """Setting to which `difference` compares; None for the baseline itself."""
    difference: Mean | None
    """Mean of the first metric minus the baseline's, paired by seed."""

    @property
    def main_metric(self) -> Mean | None:
        """The mean by which settings are compared."""
        return next(iter(self.quality.values()))


def mean_of(values: Sequence[float]) -> Mean | None:
    """Return mean and standard error; None if there are no values."""
    if not values:
        return None
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else None
    return Mean(fmean(values), error, len(values))


def compare(
    metrics_by_setting: Mapping[Setting, BySeed],
    failed: Mapping[Setting, int],
    baselines: Mapping[Setting, Setting],
    metrics: Sequence[str],
) -> list[Row]:
    """Return a row for each setting, in order; `failed` is the number of failed points of each.

    Settings are compared by the first of the metrics.
    """
    return [
        _row(setting, by_seed, failed.get(setting, 0), baselines.get(setting), metrics_by_setting, metrics)
        for setting, by_seed in metrics_by_setting.items()
    ]


def paired(ours: BySeed, theirs: BySeed, metric: str) -> Mean | None:
    """Return the mean of our value minus theirs over the seeds that both have; None if there are none."""
    pairs = [
        (each.quality.get(metric), theirs[seed].quality.get(metric)) for seed, each in ours.items() if seed in theirs
    ]
    return mean_of([our - their for our, their in pairs if our is not None and their is not None])


def _row(
    setting: Setting,
    by_seed: BySeed,
    failed: int,
    baseline: Setting | None,
    metrics_by_setting: Mapping[Setting, BySeed],
    metrics: Sequence[str],
) -> Row:
    other = baseline if baseline != setting else None
    points = list(by_seed.values())
    return Row(
        setting=setting,
        finished=len(points),
        failed=failed,
        samples_per_s=_over([point.samples_per_s for point in points]),
        quality={metric: _over([point.quality.get(metric) for point in points]) for metric in metrics},
        judged_steps=tuple(sorted({point.judged_step for point in points if point.judged_step is not None})),
        steps=max((point.steps for point in points), default=None),
        staleness_max=max((point.staleness_max for point in points), default=None),
        staleness_fraction=max((point.staleness_fraction for point in points), default=None),
        baseline=other,
        difference=paired(by_seed, metrics_by_setting[other], metrics[0]) if other is not None else None,
    )


def _over(values: Sequence[float | None]) -> Mean | None:
    return mean_of([value for value in values if value is not None])


def half_width(values: int, confidence: float = SURE) -> float:
    """Return half the width, in standard errors, of the confidence interval of a mean of n > 1 values.

    It is the quantile (1 + confidence) / 2 of Student's t with n - 1 degrees of freedom, found by bisection.
    """
    low, high = 0.0, 1.0
    while _within(high, values - 1) < confidence:
        low, high = high, 2.0 * high
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (middle, high) if _within(middle, values - 1) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Return the probability of [-t, t] for a whole number of degrees of freedom.

    Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    squared = math.cos(angle) ** 2
    term = math.cos(angle) if freedom % 2 else 1.0
    series = 0.0
    for power in range(2 + freedom % 2, freedom + 1, 2):
        series += term
        term *= squared * (power - 1) / power
    if freedom % 2:
        return (angle + math.sin(angle) * series) * 2.0 / math.pi
    return math.sin(angle) * series
