"""Samples of a data set, as training and evaluation read them."""

from typing import Any

import numpy as np

from persia_cli.config.schema.dataset import GeneratedDataset, ParquetDataset
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.source import open_source


def read(data: ParquetDataset | GeneratedDataset, split: Any = "train", seed: int = 0, epoch: int = 0) -> Batch:
    """Read all samples of a split."""
    source = open_source(data, split, seed)
    try:
        return source.read(epoch, 0, source.rows)
    finally:
        source.close()


def ids_by_sample(batch: Batch) -> list[list[list[int]]]:
    """Return the ids by sample and feature, by the definition of offsets."""
    n = batch.size
    return [
        [batch.ids[batch.offsets[f * n + s] : batch.offsets[f * n + s + 1]].tolist() for f in range(batch.features)]
        for s in range(n)
    ]


def same(one: Batch, other: Batch) -> None:
    """Check that batches have the same samples."""
    for name in ("dense", "labels", "ids", "offsets"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
