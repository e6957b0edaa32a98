"""Settings of a sweep compared: figures averaged over seeds, and their differences to a baseline, seed by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from persia_cli.observe.outcome import Figures
from persia_cli.plan.grid import Setting

BySeed = Mapping[str, Figures]
"""The figures of a setting's finished points, by seed as written."""


@dataclass(frozen=True)
class Mean:
    """A mean over seeds."""

    mean: float
    error: float | None
    """Standard error: sample standard deviation over the square root of the number; None for one value alone."""
    count: int


@dataclass(frozen=True)
class Difference:
    """The paired difference of AUC to the baseline: same seed against same seed."""

    auc: Mean

    @property
    def bound(self) -> float | None:
        """The size of the mean difference and two standard errors more; None for one seed alone."""
        return None if self.auc.error is None else abs(self.auc.mean) + 2 * self.auc.error


@dataclass(frozen=True)
class Row:
    """One setting of a sweep over its seeds; a figure that no finished point has is None."""

    setting: Setting
    finished: int
    failed: int
    samples_per_s: Mean | None
    auc: Mean | None
    log_loss: Mean | None
    steps: int | None
    staleness_max: int | None
    staleness_share: float | None
    baseline: Setting | None
    """What `difference` is to; None for the baseline itself."""
    difference: Difference | None


def mean_of(values: Sequence[float]) -> Mean | None:
    """Return mean and standard error; None without values."""
    if not values:
        return None
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else None
    return Mean(fmean(values), error, len(values))


def compare(
    figures: Mapping[Setting, BySeed], failed: Mapping[Setting, int], baselines: Mapping[Setting, Setting]
) -> list[Row]:
    """Return a row for each setting, in order; `failed` counts the points of each that failed."""
    return [
        _row(setting, by_seed, failed.get(setting, 0), baselines.get(setting), figures)
        for setting, by_seed in figures.items()
    ]


def paired_auc(ours: BySeed, theirs: BySeed) -> Mean | None:
    """Return the mean of our AUC less theirs over the seeds that both have; None if they share none."""
    pairs = [(each.auc, theirs[seed].auc) for seed, each in ours.items() if seed in theirs]
    return mean_of([our - their for our, their in pairs if our is not None and their is not None])


def _row(
    setting: Setting, by_seed: BySeed, failed: int, baseline: Setting | None, figures: Mapping[Setting, BySeed]
) -> Row:
    other = baseline if baseline != setting else None
    difference = paired_auc(by_seed, figures[other]) if other is not None else None
    points = list(by_seed.values())
    return Row(
        setting=setting,
        finished=len(points),
        failed=failed,
        samples_per_s=_over([point.samples_per_s for point in points]),
        auc=_over([point.auc for point in points]),
        log_loss=_over([point.log_loss for point in points]),
        steps=max((point.steps for point in points), default=None),
        staleness_max=max((point.staleness_max for point in points), default=None),
        staleness_share=max((point.staleness_share for point in points), default=None),
        baseline=other,
        difference=Difference(difference) if difference else None,
    )


def _over(values: Sequence[float | None]) -> Mean | None:
    return mean_of([value for value in values if value is not None])
