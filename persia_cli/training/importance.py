"""Permutation importance: how much worse a model gets when samples exchange their values of one feature.

Breiman, "Random Forests", Machine Learning 45 (2001).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.config.schema.metric import HEADLINES, aim_of, goodness, keys_of
from persia_cli.data.read.batch import Batch, assemble
from persia_cli.data.read.decode import Ids, take_ids
from persia_cli.data.read.source import Source, open_source
from persia_cli.errors import DataError
from persia_cli.observe.quality import quality
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.plan.columns import dense_count, sparse_features
from persia_cli.storage.places import Place
from persia_cli.training.device import device_of
from persia_cli.training.loaded_model import LoadedModel

REPEATS = 5
"""Random exchanges of each feature's values."""
BLOCK = 2**17
"""Samples that exchange values with each other, at most."""
SAMPLES = 8192
"""Samples that the network scores at a time."""

Progress = Callable[[int, int], None]
"""Called with the number of samples scored so far, and of all."""


@dataclass(frozen=True, slots=True)
class FeatureImportance:
    """How much worse each metric gets without a feature: the mean over the repeats, and its standard error."""

    name: str
    kind: str
    """`dense` or `sparse`."""
    worse: dict[str, float]
    error: dict[str, float]


@dataclass(frozen=True, slots=True)
class Importance:
    """The metrics of the model as it is, and all features, the most important one first."""

    samples: int
    repeats: int
    metrics: dict[str, float]
    features: list[FeatureImportance]


@dataclass(frozen=True, slots=True)
class _Feature:
    """A feature: its columns of `Batch.dense`, or its number among the sparse features."""

    name: str
    place: slice | int

    def shuffled(self, batch: Batch, order: NDArray[np.int64]) -> Batch:
        """Return the batch with the values of this feature from other samples: of sample order[i] in sample i."""
        if isinstance(self.place, slice):
            dense = batch.dense.copy()
            dense[:, self.place] = dense[order, self.place]
            return replace(batch, dense=dense)
        lists = [Ids(*each) for each in batch.lists]
        lists[self.place] = take_ids(lists[self.place], order)
        ids, offsets = zip(*lists, strict=True)
        return assemble(batch.dense, batch.labels, batch.weights, ids, offsets)


def permutation_importance(run: Run, checkpoint: Place, progress: Progress) -> Importance:
    """Measure every feature on the evaluation samples of a run, by its saved model in this process.

    The samples are read once for the metrics, and once for each feature. Exchanges depend on the run's seed alone.
    Raise DataError if a metric is not defined on these samples, UserError for a model whose outputs are not finite.
    """
    network = LoadedModel(run, checkpoint, device_of(run, 0))
    source = open_source(run.dataset, "eval", run.seed, run.links)
    features, done = list(_features(run)), 0
    total = source.rows * (1 + REPEATS * len(features))

    def measured(number: int, feature: _Feature | None) -> list[dict[str, float]]:
        """Return the metrics after each exchange of a feature's values, or those of the model as it is."""
        nonlocal done
        repeats = [ScoreHistogram(len(run.links), list(run.links.values())) for _ in range(REPEATS if feature else 1)]
        for start, batch in _blocks(source):
            for repeat, scores in enumerate(repeats):
                order = np.random.default_rng([run.seed, number, repeat, start]).permutation(batch.size)
                shuffled = batch if feature is None else feature.shuffled(batch, order)
                for first in range(0, batch.size, SAMPLES):
                    part = shuffled.rows(first, min(first + SAMPLES, batch.size))
                    scores.add(network.logits(part), part.labels, part.weights)
                    done += part.size
                    progress(done, total)
        return [_metrics(run, scores) for scores in repeats]

    try:
        [base] = measured(0, None)
        found = [_judged(each, base, measured(number, each)) for number, each in enumerate(features, 1)]
    finally:
        source.close()
    main = next(iter(base))
    return Importance(source.rows, REPEATS, base, sorted(found, key=lambda each: -each.worse[main]))


def _features(run: Run) -> Iterator[_Feature]:
    first = 0
    if isinstance(run.dataset, ParquetDataset):
        for dense in run.dataset.dense_features:
            yield _Feature(dense.name, slice(first, first := first + dense.inputs))
    else:
        yield from (_Feature(f"dense_{number}", slice(number, number + 1)) for number in range(dense_count(run)))
    yield from (_Feature(feature.name, number) for number, feature in enumerate(sparse_features(run)))


def _blocks(source: Source) -> Iterator[tuple[int, Batch]]:
    """Yield the samples in blocks of about equal size, with the number of the first one of each."""
    count = -(-source.rows // BLOCK)
    bounds = np.linspace(0, source.rows, count + 1).astype(np.int64).tolist()
    for start, stop in pairwise(bounds):
        yield start, source.read(0, start, stop)


def _metrics(run: Run, scores: ScoreHistogram) -> dict[str, float]:
    """Return AUC of each label that is a class, RMSE of one that is a number, by their keys."""
    figures, labels = quality(run.links, scores), list(run.links)
    found = {}
    for task, link in enumerate(run.links.values()):
        key = keys_of(HEADLINES[link][0], labels)[task]
        if (value := figures[key]) is None:
            raise DataError(f"{key} is not defined on these samples, of one class alone; give others by --data")
        found[key] = value
    return found


def _judged(feature: _Feature, base: dict[str, float], repeats: list[dict[str, float]]) -> FeatureImportance:
    worse, error = {}, {}
    for name, value in base.items():
        aim = aim_of(name)
        losses = [goodness(aim, value) - goodness(aim, each[name]) for each in repeats]
        worse[name] = float(np.mean(losses))
        error[name] = float(np.std(losses, ddof=1) / np.sqrt(len(losses)))
    kind = "dense" if isinstance(feature.place, slice) else "sparse"
    return FeatureImportance(feature.name, kind, worse, error)
