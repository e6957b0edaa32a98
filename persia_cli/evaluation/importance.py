"""Permutation importance: how much worse a model gets when samples exchange their values of one feature.

Breiman, "Random Forests", Machine Learning 45 (2001).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.data.read.batch import Batch, Ids, assemble, take_ids
from persia_cli.data.read.source import open_source
from persia_cli.errors import DataError
from persia_cli.evaluation.loaded_model import LoadedModel
from persia_cli.metric import HEADLINES, aim_of, goodness, keys_of
from persia_cli.observe.scores import ScoreHistogram, quality
from persia_cli.plan.columns import dense_count, sparse_features
from persia_cli.storage.locations import Location
from persia_cli.training.device import device_of

REPEATS = 5
"""Random exchanges of each feature's values."""
BLOCK, SAMPLES = 2**17, 8192
"""Samples that exchange values with each other, at most, and that the network scores at a time."""

Progress = Callable[[int, int], None]
"""Called with the number of samples scored so far, and of all."""
Feature = slice | int
"""Columns of `Batch.dense`, or the number of a sparse feature."""


@dataclass(frozen=True, slots=True)
class FeatureImportance:
    """The loss of each metric without a feature: the mean over the exchanges, and its standard error."""

    name: str
    worse: dict[str, float]
    error: dict[str, float]


@dataclass(frozen=True, slots=True)
class Importance:
    """The metrics of the unchanged model, and all features, the most important one first."""

    samples: int
    metrics: dict[str, float]
    features: list[FeatureImportance]


def permutation_importance(run: Run, checkpoint: Location, progress: Progress) -> Importance:
    """Measure every feature on the evaluation samples of a run, by its saved model in this process.

    The samples are read once for the metrics, and once for each feature. Exchanges depend on the run's seed alone.
    Raise DataError if a metric is not defined on these samples, UserError for a model whose outputs are not finite.
    """
    model = LoadedModel(run, checkpoint, device_of(run, 0))
    source = open_source(run.dataset, "eval", run.seed, run.links)
    features, done = _features(run), 0
    total = source.rows * (1 + REPEATS * len(features))
    bounds = np.linspace(0, source.rows, -(-source.rows // BLOCK) + 1).astype(np.int64).tolist()

    def measured(number: int, feature: Feature | None) -> list[dict[str, float]]:
        """Return the metrics after each exchange of a feature's values, or those of the unchanged model."""
        nonlocal done
        repeats = [ScoreHistogram(len(run.links), list(run.links.values())) for _ in range(REPEATS)]
        repeats = repeats[:1] if feature is None else repeats
        for start, stop in pairwise(bounds):
            batch = source.read(0, start, stop)
            for repeat, scores in enumerate(repeats):
                order = np.random.default_rng([run.seed, number, repeat, start]).permutation(batch.size)
                exchanged = batch if feature is None else _exchanged(batch, feature, order)
                for first in range(0, batch.size, SAMPLES):
                    part = exchanged.rows(first, min(first + SAMPLES, batch.size))
                    scores.add(model.logits(part), part.labels, part.weights)
                    progress(done := done + part.size, total)
        return [_metrics(run, scores) for scores in repeats]

    try:
        [base] = measured(0, None)
        judged = [_judged(name, base, measured(number, features[name])) for number, name in enumerate(features, 1)]
    finally:
        source.close()
    main = next(iter(base))
    return Importance(source.rows, base, sorted(judged, key=lambda feature: -feature.worse[main]))


def _features(run: Run) -> dict[str, Feature]:
    dense = [(f"dense_{number}", 1) for number in range(dense_count(run))]
    if isinstance(run.dataset, ParquetDataset):
        dense = [(feature.name, feature.inputs) for feature in run.dataset.dense_features]
    ends = np.cumsum([width for _, width in dense]).tolist()
    features: dict[str, Feature] = {
        name: slice(end - width, end) for (name, width), end in zip(dense, ends, strict=True)
    }
    for number, feature in enumerate(sparse_features(run)):
        features[f"{feature.name} (sparse)" if feature.name in features else feature.name] = number
    return features


def _exchanged(batch: Batch, feature: Feature, order: NDArray[np.int64]) -> Batch:
    """Return a batch whose sample i has the feature's values of sample order[i]."""
    if isinstance(feature, slice):
        dense = batch.dense.copy()
        dense[:, feature] = dense[order, feature]
        return replace(batch, dense=dense)
    lists = [Ids(*ids) for ids in batch.lists]
    lists[feature] = take_ids(lists[feature], order)
    ids, offsets = zip(*lists, strict=True)
    return assemble(batch.dense, batch.labels, batch.weights, ids, offsets)


def _metrics(run: Run, scores: ScoreHistogram) -> dict[str, float]:
    """Return AUC of each label that is a class, RMSE of one that is a number, by their keys."""
    values, labels, headlines = quality(run.links, scores), list(run.links), {}
    for task, link in enumerate(run.links.values()):
        key = keys_of(HEADLINES[link][0], labels)[task]
        if (value := values[key]) is None:
            raise DataError(f"{key} is not defined on these samples, of one class alone; give others by --data")
        headlines[key] = value
    return headlines


def _judged(name: str, base: dict[str, float], repeats: list[dict[str, float]]) -> FeatureImportance:
    worse, error = {}, {}
    for key, value in base.items():
        losses = [goodness(aim_of(key), value) - goodness(aim_of(key), repeat[key]) for repeat in repeats]
        worse[key], error[key] = float(np.mean(losses)), float(np.std(losses, ddof=1) / np.sqrt(len(losses)))
    return FeatureImportance(name, worse, error)
