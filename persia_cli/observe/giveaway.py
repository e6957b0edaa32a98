"""The feature that gives a label away, where an evaluation's AUC is too good to be true."""

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.data.inspect.alone import LEAST_ROWS, auc_alone, is_leak
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.source import open_source
from persia_cli.errors import PersiaError
from persia_cli.metric import keys_of

TOO_GOOD = 0.9999
"""AUC from which on a feature probably holds the label."""
ROWS = 1 << 16
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
            found = _alone(run, task)
        except (PersiaError, OSError):  # the files may be on other machines
            found = {}
        if found is None:
            continue
        note = f"{key} {auc:.4f} is too good to be true: "
        if not found:
            return f"{note}persia eval RUN --importance names the features that give {names[task]} away"
        name, alone = max(found.items(), key=lambda each: each[1])
        return (
            f"{note}{name} alone gives AUC {alone:.4f}, so it is probably known only after {names[task]}, or made of "
            f"it; leave {name} out of dataset.dense and dataset.sparse, and train again"
        )
    return None


def _alone(run: Run, task: int) -> dict[str, float] | None:
    """Return the features that give a label away alone, each with its AUC; None for too few samples of a class."""
    source = open_source(run.dataset, "eval", run.seed, run.links)
    try:
        batch = source.read(0, 0, min(ROWS, source.rows))
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
