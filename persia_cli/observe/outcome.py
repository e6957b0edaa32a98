"""The metrics of a finished job, from its record, by which jobs are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from persia_cli.metric import AIMS, aim_of, goodness, is_of_retrieval
from persia_cli.observe.journal import EVENTS, METRICS, read_journal

MIN_STEPS = 50
"""Minimum number of steps after the first log interval for computing a speed."""

Line = Mapping[str, Any]


@dataclass(frozen=True)
class JobMetrics:
    """A job's speed and quality; None where it is undefined."""

    samples_per_s: float | None
    """Training samples per second by the ranks' clocks, without the first log interval, which includes the start."""
    quality: dict[str, float | None]
    """Metrics of the evaluation that counts for the job, by key; for several labels, also the mean of each metric.

    Without an evaluation split they are the progressive metrics of training.
    """
    judged_step: int | None
    """Step of that evaluation; None without an evaluation."""
    steps: int
    staleness_max: int
    """Maximum staleness of any look-up, in steps."""

    @property
    def staleness_fraction(self) -> float:
        """Maximum staleness divided by the steps of the job."""
        return self.staleness_max / self.steps if self.steps else 0.0


def metrics_in(run_dir: Path, metric: str) -> JobMetrics | None:
    """Return the metrics of the job in a run directory; None if it recorded no training.

    The evaluation that counts is the one that the job chose itself (`train.stop_early`, `checkpoint.best_by`), else the
    one with the best `metric`.
    """
    events = read_journal(run_dir / EVENTS)
    best = [event["step"] for event in events if event["event"] == "best"]
    return metrics_of(read_journal(run_dir / METRICS), metric, best[-1] if best else None, events)


def metrics_of(
    metrics: Sequence[Line], metric: str, chosen: int | None = None, events: Sequence[Line] = ()
) -> JobMetrics | None:
    """Return the metrics of a job from its lines of metrics; `chosen` is the step of the evaluation that it chose.

    They are those of the saved model, with the corrections in the job's `events`.
    """
    training = [line for line in metrics if line["split"] == "train"]
    if not training:
        return None
    evaluations = [line for line in metrics if line["split"] == "eval"]
    judged = as_used(judged_by(evaluations, metric, chosen), events) if evaluations else training[-1]
    return JobMetrics(
        samples_per_s=speed_of(training),
        quality=quality_in(judged),
        judged_step=judged["step"] if evaluations else None,
        steps=training[-1]["step"],
        staleness_max=max(line["staleness_max"] for line in training),
    )


def calibration_at(step: int, events: Sequence[Line]) -> Line | None:
    """Return the event of the corrections that were fitted on the last evaluation of a step; None without any."""
    for event in reversed(events):
        if event["event"] == "reliability" and event["step"] == step:
            return None
        if event["event"] == "calibrated" and event["step"] == step:
            return event
    return None


def as_used(line: Line, events: Sequence[Line]) -> Line:
    """Return the line of an evaluation in training with the metrics of the saved model, whose logits are corrected."""
    event = calibration_at(line["step"], events) if line["split"] == "eval" else None
    return line if event is None else dict(line) | event["metrics"] | {"calibrated": True}


def correction(fitted: Mapping[str, Any]) -> str:
    """Return a correction of a label, and what it changes, as text."""
    before, after = fitted["log_loss"]
    numbers = f"slope {fitted['slope']:.4g}, shift {fitted['shift']:.4g}"
    return f"{numbers}: log loss {before:.4f} -> {after:.4f} on the evaluation samples of training"


def speed_of(training: Sequence[Line]) -> float | None:
    """Return samples per second over all log intervals but the first; None for fewer than MIN_STEPS steps."""
    if not training or training[-1]["step"] - training[0]["step"] < MIN_STEPS:
        return None
    before = [line["samples"] for line in training[:-1]]
    intervals = [
        (line["samples"] - done, line["samples_per_s"]) for done, line in zip(before, training[1:], strict=True)
    ]
    seconds = sum(samples / rate for samples, rate in intervals if rate)
    return sum(samples for samples, rate in intervals if rate) / seconds if seconds else None


def judged_by(evaluations: Sequence[Line], metric: str, chosen: int | None) -> Line:
    """Return the evaluation that counts: the chosen one, else the first with the best metric, else the last one."""
    of_step = [line for line in evaluations if line["step"] == chosen]
    if of_step:
        return of_step[-1]
    scored = [(line, value) for line in evaluations if (value := quality_in(line).get(metric)) is not None]
    return (
        max(scored, key=lambda scored_line: goodness(aim_of(metric), scored_line[1]))[0] if scored else evaluations[-1]
    )


def quality_in(line: Line) -> dict[str, float | None]:
    """Return a line's metrics of quality, and their means over labels."""
    metrics: dict[str, float | None] = {"loss": line.get("loss")}
    for name in AIMS:
        values = {key: value for key, value in line.items() if key == name or key.startswith(f"{name}_")}
        if values:
            defined = [value for value in values.values() if value is not None]
            metrics |= {name: fmean(defined) if len(defined) == len(values) else None} | values
    return metrics | {key: value for key, value in line.items() if is_of_retrieval(key)}
