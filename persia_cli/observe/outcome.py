"""What one finished job came to, from its metrics: the figures by which jobs are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any


@dataclass(frozen=True)
class Figures:
    """A job's speed and quality; None where it is not defined."""

    samples_per_s: float | None
    """Samples of training per second, without the first log interval, in which all begins."""
    auc: float | None
    """Of the last evaluation, the mean over labels; without an evaluation split, progressive over training."""
    log_loss: float | None
    """As `auc`."""
    steps: int
    staleness_max: int
    """Steps, the most that was measured at any look-up."""

    @property
    def staleness_share(self) -> float:
        """The most staleness over the steps of the job."""
        return self.staleness_max / self.steps if self.steps else 0.0


def figures_of(metrics: Sequence[Mapping[str, Any]]) -> Figures | None:
    """Return the figures of a job from its lines of metrics; None if it has none of training."""
    training = [line for line in metrics if line["split"] == "train"]
    if not training:
        return None
    judged = next((line for line in reversed(metrics) if line["split"] == "eval"), training[-1])
    return Figures(
        samples_per_s=_rate(training),
        auc=_mean(judged, "auc"),
        log_loss=_mean(judged, "log_loss"),
        steps=training[-1]["step"],
        staleness_max=max(line["staleness_max"] for line in training),
    )


def _rate(training: Sequence[Mapping[str, Any]]) -> float | None:
    """Return samples per second over all intervals but the first, if there are others."""
    before = [0, *(line["samples"] for line in training[:-1])]
    intervals = [(line["samples"] - done, line["samples_per_s"]) for done, line in zip(before, training, strict=True)]
    counted = [(samples, rate) for samples, rate in intervals[1:] or intervals if rate]
    seconds = sum(samples / rate for samples, rate in counted)
    return sum(samples for samples, _ in counted) / seconds if seconds else None


def _mean(line: Mapping[str, Any], figure: str) -> float | None:
    """Return a figure of a line, the mean over labels where there are several."""
    values = [value for key, value in line.items() if key == figure or key.startswith(f"{figure}_")]
    return fmean(values) if values and None not in values else None
