"""The mean of each label over the training rows of a data set."""

from collections.abc import Mapping

import numpy as np

from persia_cli.config.schema.dataset import GeneratedDataset, ParquetDataset
from persia_cli.data.read.masked_labels import fill_chain, without_unknown
from persia_cli.data.read.source import open_source
from persia_cli.metric import Link

_ROWS = 1 << 17
"""Rows that are read at a time."""


def label_means(
    dataset: ParquetDataset | GeneratedDataset, seed: int, links: Mapping[str, Link], is_chain: bool = False
) -> tuple[float | None, ...]:
    """Return the mean of each label over the samples that have it, by their weights; None without weight.

    In a chain a label is 0 where the one before it is. It reads the columns of labels and weights alone, of all
    training rows, in the order of the files. `seed` and
    `links` are as in `open_source`. Raises DataError for labels that cannot be read.
    """
    if isinstance(dataset, ParquetDataset):
        dataset = dataset.model_copy(update={"dense": (), "sparse": (), "group_by": None, "shuffle": False})
    source = open_source(dataset, "train", seed, links)
    try:
        sums, totals = (np.zeros(len(dataset.label_names)) for _ in range(2))
        for start in range(0, source.rows, _ROWS):
            batch = source.read(0, start, min(start + _ROWS, source.rows))
            if is_chain:
                fill_chain(batch.labels)
            ones = np.ones(batch.size) if batch.weights is None else batch.weights.astype(np.float64)
            labels, weights = without_unknown(batch.labels.astype(np.float64), ones)
            assert weights is not None
            sums += weights @ labels if weights.ndim == 1 else (weights * labels).sum(0)
            totals += weights.sum(0)
    finally:
        source.close()
    return tuple(float(s / total) if total else None for s, total in zip(sums, totals, strict=True))
