"""Advice at the end of a training: the one setting that would help most, by its lines of metrics."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from persia_cli.config.schema import Run
from persia_cli.config.schema.metric import aim_of, goodness, value_of
from persia_cli.config.schema.perceptrons import Perceptrons

CLEAR = 0.003
"""Relative change of a metric that is more than the noise of a seed."""
GAIN = 0.001
"""Relative improvement by the last evaluation from which on longer training is worthwhile."""
RISE = 1.05
"""Training loss relative to its lowest value before, above which training diverges."""

Line = Mapping[str, Any]


class _Point(NamedTuple):
    """An evaluation, and the mean training loss since the one before."""

    step: int
    quality: float
    """Higher is better; a change of 1 is the size of the metric at the first evaluation."""
    loss: float


def advice(run: Run, steps: int, metrics: Sequence[Line]) -> str | None:
    """Return a sentence with the KEY=VALUE that would help most; None if the lines show nothing clear.

    `metrics` are the run's lines of metrics, `steps` the maximum number of planned steps.
    """
    dropped = next((line["cold_dropped"] for line in reversed(metrics) if "cold_dropped" in line), 0)
    if dropped and run.embedding.cold is not None:
        more = f"such as embedding.cold.size={2 * run.embedding.cold.size}"
        return f"{dropped:,} rows were lost, because their space on disks was used up: give them more, {more}"
    metric = run.judging_metric
    points = _points(metric, metrics)
    if len(points) < 2:
        return None
    rate = f"optimizer.dense.lr={_third(run.optimizer.dense.lr)}"
    least = min(point.loss for point in points[:-1])
    if points[-1].loss > RISE * least and points[-1].quality < points[0].quality - CLEAR:
        return f"the training loss rises, and {metric} gets worse: a lower learning rate may help, such as {rate}"
    if len(points) > 3 and _swings(points):
        return f"{metric} goes up and down between evaluations: a lower learning rate may help, such as {rate}"
    best = max(points, key=lambda point: point.quality)
    if points[-1].quality < best.quality - CLEAR and points[-1].loss < best.loss:
        return _against_overfitting(run, metric, best.step)
    if points[-1] is best and best.quality - points[-2].quality > GAIN and best.step >= steps:
        return f"{metric} was still improving at the last evaluation: train longer, by persia resume RUN {_longer(run)}"
    return None


def _points(metric: str, metrics: Sequence[Line]) -> list[_Point]:
    """Return the evaluations that have the metric, in the order of steps."""
    found: list[_Point] = []
    losses: list[tuple[float, int]] = []
    samples, scale = 0, 0.0
    for line in metrics:
        if line["split"] == "train":
            if line["loss"] is not None:
                losses.append((line["loss"], line["samples"] - samples))
            samples = line["samples"]
        elif (measured := value_of(line, metric)) is not None and losses:
            value = goodness(aim_of(metric), measured)
            scale = scale or abs(value) or 1.0
            count = sum(number for _, number in losses) or 1
            found.append(_Point(line["step"], value / scale, sum(loss * number for loss, number in losses) / count))
            losses = []
    return found


def _swings(points: Sequence[_Point]) -> bool:
    """Return True if each evaluation goes clearly the other way than the one before.

    The first change is left out of the size: a new model learns much, which is no swing.
    """
    changes = [after.quality - before.quality for before, after in pairwise(points)]
    return all(a * b < 0 for a, b in pairwise(changes)) and min(map(abs, changes[1:])) > CLEAR


def _against_overfitting(run: Run, metric: str, best: int) -> str:
    """Return advice for a model that overfits after step `best`."""
    found = f"{metric} was best at step {best:,} and got worse while the training loss fell"
    if run.checkpoint.best_by is None and run.checkpoint.at_end:
        return f"{found}: keep the best model, by checkpoint.best_by={metric}"
    dropout = _dropout(run)
    if dropout is not None and dropout < 0.4:
        return f"{found}: more dropout may help, such as model.dropout={0.2 if dropout < 0.2 else 0.4:g}"
    rate = _third(run.optimizer.embedding.lr)
    return f"{found}: a lower learning rate of rows may help, such as optimizer.embedding.lr={rate}"


def _dropout(run: Run) -> float | None:
    """Return the dropout of hidden layers; None if there are none, or each has its own."""
    model = run.model
    if not isinstance(model, Perceptrons) or not any(getattr(model, name) for name in model.LISTS):
        return None
    return model.dropout if isinstance(model.dropout, float) else None


def _longer(run: Run) -> str:
    """Return the setting that doubles the length of a training."""
    if run.train.steps is not None:
        return f"train.steps={2 * run.train.steps}"
    assert run.train.epochs != "auto"
    return f"train.epochs={2 * run.train.epochs}"


def _third(rate: float) -> str:
    """Return about a third of a learning rate, with one digit."""
    return f"{rate * 0.3:.1g}"
