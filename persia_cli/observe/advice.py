"""Advice at the end of a training: the one setting that would help most, by its lines of metrics."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from persia_cli.config.schema import Run
from persia_cli.config.schema.perceptrons import Perceptrons
from persia_cli.metric import aim_of, goodness, headlines
from persia_cli.observe.outcome import quality_in

CLEAR = 0.003
"""Relative change of a metric that is more than the noise of a seed."""
GAIN = 0.001
"""Relative improvement by the last evaluation from which on longer training is worthwhile."""
RISE = 1.05
"""Training loss relative to its lowest value before, above which training diverges."""

Line = Mapping[str, Any]


class Gain(NamedTuple):
    """The measured effect of a change on AUC: the mean over tables, and its standard error."""

    auc: float
    error: float


MEASURED = 5, 8_000, 12_000
"""Number of tables of `GAINS`, and their training rows: Avazu, adult, Criteo, MovieLens 100K and InstEval of lme4."""
ROWS = 1_000, 50_000
"""Training rows of the tables that these gains stand for."""
GAINS = {
    "norm": Gain(-0.0079, 0.0044),
    "dropout": Gain(0.0004, 0.0002),
    "rate": Gain(0.0011, 0.0016),
    "dim": Gain(0.0006, 0.0006),
}
"""Gains of `model.norm=batch`, `model.dropout=0.2`, 0.3 times the rate of rows and twice `model.dim`, each alone.

From `conf=base` without normalisation and dropout: best evaluation by AUC, two or three seeds, an early stop by AUC
with patience 2, up to 8 epochs. A change that has gained no more than its error is not advised.
"""


class _Point(NamedTuple):
    """An evaluation, and the mean training loss since the one before."""

    step: int
    quality: float
    """Higher is better; a change of 1 is the size of the metric at the first evaluation."""
    loss: float


def advice(run: Run, steps: int, rows: int, metrics: Sequence[Line]) -> str | None:
    """Return a sentence with the KEY=VALUE that would help most; None if the lines show nothing clear.

    `metrics` are the run's lines of metrics, `steps` the maximum number of planned steps, `rows` those of training.
    """
    dropped = next((line["cold_dropped"] for line in reversed(metrics) if "cold_dropped" in line), 0)
    if dropped and run.embedding.cold is not None:
        more = f"such as embedding.cold.size={2 * run.embedding.cold.size}"
        return f"{dropped:,} rows were lost, because their space on disks was used up: give them more, {more}"
    metric = _ranking(run)
    key = metric if len(run.links) == 1 else run.judging_metric  # of several labels it is the mean
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
    is_rising = points[-1] is best and best.quality - points[-2].quality > GAIN
    overfits = points[-1].quality < best.quality - CLEAR and points[-1].loss < best.loss
    if overfits and run.checkpoint.best_by is None and run.checkpoint.at_end:
        return f"{_overfitting(metric, best.step)}: keep the best model, by checkpoint.best_by={key}"
    measured = dict(_measured(run)) if ROWS[0] <= rows <= ROWS[1] else {}
    if "norm" in measured:
        return _with_gain("normalise hidden layers", "norm", measured)
    if is_rising and best.step >= steps:
        return f"{metric} was still improving at the last evaluation: train longer, by persia resume RUN {_longer(run)}"
    if is_rising and run.train.early_stop is not None:
        patience = 2 * run.train.early_stop.patience
        stop = f"'train.stop_early={{metric: {key}, patience: {patience}}}'"
        return f"{metric} was still improving when training ended early: give it more patience, by {stop}"
    for change in ("dropout", "rate") if overfits else ("dim",):
        if change in measured:
            found = _overfitting(metric, best.step) if overfits else f"{metric} no longer improves"
            return _with_gain(found, change, measured)
    return None


def _ranking(run: Run) -> str:
    """Return the metric of a run's model, without probabilities: where these alone get worse, calibration helps."""
    metric = run.judging_metric
    of_probabilities = metric.startswith(("loss", "log_loss", "ne", "calibration"))
    return headlines(run.links)[0] if of_probabilities else metric


def _overfitting(metric: str, best: int) -> str:
    return f"{metric} was best at step {best:,} and got worse while the training loss fell"


def _measured(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the changes that a run has not made and that have gained more than their error, with their settings."""
    changes: dict[str, str] = {}
    if isinstance(run.model, Perceptrons) and any(getattr(run.model, name) for name in run.model.LISTS):
        if run.model.norm == "none":
            changes["norm"] = "model.norm=batch"
        if isinstance(run.model.dropout, float) and run.model.dropout < 0.2:
            changes["dropout"] = "model.dropout=0.2"
    changes["rate"] = f"optimizer.embedding.lr={_third(run.optimizer.embedding.rate)}"
    changes["dim"] = f"model.dim={2 * run.model.dim}"
    yield from ((name, setting) for name, setting in changes.items() if GAINS[name].auc > GAINS[name].error)


def _with_gain(found: str, change: str, measured: Mapping[str, str]) -> str:
    gain, (tables, low, high) = GAINS[change], MEASURED
    of = f"{gain.auc:+.4f} ± {gain.error:.4f} AUC in the mean of {tables} tables of {low:,} to {high:,} rows"
    return f"{found}: try {measured[change]} ({of})"


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
        elif (measured := quality_in(line).get(metric)) is not None and losses:
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


def _longer(run: Run) -> str:
    """Return the setting that doubles the length of a training."""
    if run.train.steps is not None:
        return f"train.steps={2 * run.train.steps}"
    assert run.train.epochs != "auto"
    return f"train.epochs={2 * run.train.epochs}"


def _third(rate: float) -> str:
    """Return about a third of a learning rate, with one digit."""
    return f"{rate * 0.3:.1g}"
