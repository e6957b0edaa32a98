"""The mean of each label over the training rows of a data set."""

from collections.abc import Mapping

import numpy as np

from persia_cli.config.schema.dataset import GeneratedDataset, ParquetDataset
from persia_cli.config.schema.loss import Link
from persia_cli.data.source import open_source

_ROWS = 1 << 17
"""Rows that are read at a time."""


def label_means(
    dataset: ParquetDataset | GeneratedDataset, seed: int, links: Mapping[str, Link]
) -> tuple[float, ...] | None:
    """Return the mean of each label, by the weights of samples if they have any, or None if all weights are 0.

    It reads the columns of labels and weights alone, of all training rows, in the order of the files. `seed` and
    `links` are as in `open_source`. Raises DataError for labels that cannot be read.
    """
    if isinstance(dataset, ParquetDataset):
        dataset = dataset.model_copy(update={"dense": (), "sparse": (), "group_by": None, "shuffle": False})
    source = open_source(dataset, "train", seed, links)
    try:
        sums, total = np.zeros(len(dataset.label_names)), 0.0
        for start in range(0, source.rows, _ROWS):
            batch = source.read(0, start, min(start + _ROWS, source.rows))
            weights = np.ones(batch.size) if batch.weights is None else batch.weights.astype(np.float64)
            sums += weights @ batch.labels.astype(np.float64)
            total += float(weights.sum())
    finally:
        source.close()
    return tuple((sums / total).tolist()) if total else None
