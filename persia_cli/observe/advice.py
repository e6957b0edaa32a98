"""Advice at the end of a training, by its lines of metrics: the one setting that would help most.

Where an evaluation's AUC is too good to be true, another sentence names the feature that gives a label away.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.config.schema.perceptrons import Perceptrons
from persia_cli.data.inspect.alone import LEAST_ROWS, auc_alone, is_leak
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.source import open_source
from persia_cli.errors import PersiaError
from persia_cli.metric import aim_of, goodness, headlines, keys_of
from persia_cli.observe.outcome import quality_in
from persia_cli.plan.length import epoch_steps

CLEAR = 0.003
"""Relative change of a metric that is more than the noise of a seed."""
GAIN = 0.001
"""Relative improvement by the last evaluation from which on longer training is worthwhile."""
RISE = 1.05
"""Training loss relative to its lowest value before, above which training diverges."""

Line = Mapping[str, Any]


DROPOUT = "model.dropout=0.2", "+0.0004 ± 0.0002 AUC in the mean of 5 tables of 8,000 to 12,000 rows"
"""A setting, and its measured gain.

From `conf=base` without normalisation and dropout: best evaluation by AUC, two or three seeds, an early stop by AUC
with patience 2, up to 8 epochs, on Avazu, adult, Criteo, MovieLens 100K and InstEval of lme4. `model.norm=batch`, other
learning rates of rows and `model.dim` have gained no more than their error (docs/guide/tuning.md).
"""
DROPOUT_ROWS = 1_000, 50_000
"""Training rows of the tables that this gain stands for."""


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
    if is_rising and best.step >= steps:
        longer = _longer(run, rows)
        return f"{metric} was still improving at the last evaluation: train longer, by persia resume RUN {longer}"
    if is_rising and run.train.early_stop is not None:
        patience = 2 * run.train.early_stop.patience
        stop = f"'train.stop_early={{metric: {key}, patience: {patience}}}'"
        return f"{metric} was still improving when training ended early: give it more patience, by {stop}"
    if overfits and DROPOUT_ROWS[0] <= rows <= DROPOUT_ROWS[1] and _lacks_dropout(run):
        return f"{_overfitting(metric, best.step)}: try {DROPOUT[0]} ({DROPOUT[1]})"
    return None


def _ranking(run: Run) -> str:
    """Return the metric of a run's model, without probabilities: where these alone get worse, calibration helps."""
    metric = run.judging_metric
    of_probabilities = metric.startswith(("loss", "log_loss", "ne", "calibration"))
    return headlines(run.links)[0] if of_probabilities else metric


def _overfitting(metric: str, best: int) -> str:
    return f"{metric} was best at step {best:,} and got worse while the training loss fell"


def _lacks_dropout(run: Run) -> bool:
    """Return True if a network has hidden layers with less than the dropout that has gained."""
    model = run.model
    return (
        isinstance(model, Perceptrons)
        and any(getattr(model, name) for name in model.LISTS)
        and isinstance(model.dropout, float)
        and model.dropout < 0.2
    )


def _points(metric: str, metrics: Sequence[Line]) -> list[_Point]:
    """Return the evaluations that have the metric, in the order of steps."""
    points: list[_Point] = []
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
            points.append(_Point(line["step"], value / scale, sum(loss * number for loss, number in losses) / count))
            losses = []
    return points


def _swings(points: Sequence[_Point]) -> bool:
    """Return True if each evaluation goes clearly the other way than the one before.

    The first change is left out of the size: a new model learns much, which is no swing.
    """
    changes = [after.quality - before.quality for before, after in pairwise(points)]
    return all(a * b < 0 for a, b in pairwise(changes)) and min(map(abs, changes[1:])) > CLEAR


def _longer(run: Run, rows: int) -> str:
    """Return the settings that double the length of a training: for steps also so many epochs, which bound them."""
    assert run.train.epochs != "auto"
    if run.train.steps is None:
        return f"train.epochs={2 * run.train.epochs}"
    steps = 2 * run.train.steps
    epochs = -(-steps // epoch_steps(run, rows))
    return f"train.steps={steps}" + (f" train.epochs={epochs}" if epochs > run.train.epochs else "")


def _third(rate: float) -> str:
    """Return about a third of a learning rate, with one digit."""
    return f"{rate * 0.3:.1g}"


TOO_GOOD = 0.9999
"""AUC from which on a feature probably holds the label."""
MAX_MEASURED = 1 << 16
"""Evaluation samples, at most, on which features are measured alone."""


def giveaway(run: Run, line: Mapping[str, Any]) -> str | None:
    """Return a sentence on the first label whose AUC in an evaluation's line is too good to be true; else None.

    It names the feature that gives the label away alone, by the evaluation samples, if one does and they can be read.
    A few samples of a class show nothing.
    """
    names = run.dataset.label_names
    for task, key in enumerate(keys_of("auc", names)):
        if (auc := line.get(key) or 0.0) < TOO_GOOD or not isinstance(run.dataset, ParquetDataset):
            continue
        try:
            areas = _alone(run, task)
        except (PersiaError, OSError):  # the files may be on other machines
            areas = {}
        if areas is None:
            continue
        beginning = f"{key} {auc:.4f} is too good to be true: "
        if not areas:
            return f"{beginning}persia eval RUN --importance names the features that give {names[task]} away"
        name, alone = max(areas.items(), key=lambda name_and_auc: name_and_auc[1])
        return (
            f"{beginning}{name} alone gives AUC {alone:.4f}, so it is probably known only after {names[task]}, or made "
            f"of it; leave {name} out of dataset.dense and dataset.sparse, and train again"
        )
    return None


def _alone(run: Run, task: int) -> dict[str, float] | None:
    """Return the features that give a label away alone, each with its AUC; None for too few samples of a class."""
    source = open_source(run.dataset, "eval", run.seed, run.links)
    try:
        if not source.rows:  # data that grows is scored portion by portion
            return None
        batch = source.read(0, 0, min(MAX_MEASURED, source.rows))
    finally:
        source.close()
    known = ~np.isnan(batch.labels[:, task])
    labels = batch.labels[known, task]
    positive, half = labels > 0.5, np.random.default_rng(run.seed).random(labels.size) < 0.5
    ones = int(positive.sum())
    if min(ones, labels.size - ones) < LEAST_ROWS:
        return None
    measured = (
        (name, auc_alone(keys[known], numbers if numbers is None else numbers[known], positive, half))
        for name, keys, numbers in _features(run, batch)
    )
    return {name: auc for name, auc in sorted(measured, key=itemgetter(1)) if is_leak(auc, ones, labels.size - ones)}


def _features(run: Run, batch: Batch) -> Iterator[tuple[str, NDArray[np.uint64], NDArray[np.float64] | None]]:
    """Yield each feature's name, and its keys and numbers by samples; a feature of several inputs comes several times.

    The key of a list of ids is their sum, of which lists that differ hardly ever have the same.
    """
    assert isinstance(run.dataset, ParquetDataset)
    inputs = [feature.name for feature in run.dataset.dense_features for _ in range(feature.inputs)]
    for number, name in enumerate(inputs):
        numbers = batch.dense[:, number].astype(np.float64)
        yield name, numbers.view(np.uint64), numbers
    for feature, (ids, offsets) in zip(run.dataset.sparse, batch.lists, strict=True):
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(ids, dtype=np.uint64)])
        yield feature.name, sums[offsets[1:]] - sums[offsets[:-1]], None
