"""The source of a data loader's samples, for every kind of data set, and a ring of batches for measurements."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from persia_cli.config.schema.dataset import GeneratedDataset, ParquetDataset
from persia_cli.control.position import SplitName, TrainingData
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.files import find_files, locate_all
from persia_cli.data.read.generator import GeneratedSource
from persia_cli.data.read.parquet import ParquetSource
from persia_cli.data.read.scan import ParquetScan, scan
from persia_cli.kernels.toolchain.memory import Empty
from persia_cli.metric import Link

PROBABILITIES: Mapping[str, Link] = {}
"""All labels are predicted by probabilities."""


class Source(Protocol):
    """One split of a data set, its rows numbered in the order of each epoch; used by one thread."""

    @property
    def rows(self) -> int:
        """Rows of the split, the same in every epoch."""

    @property
    def train_data(self) -> TrainingData:
        """The place of the training split of the data set, even if this is another split."""

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of values that reading filled or cut so far: `filled_dense_values`, `truncated_sequences`."""

    def read(self, epoch: int, start: int, stop: int) -> Batch:
        """Return rows [start, stop) of an epoch; reading on from the end of the last call is fast."""

    def close(self) -> None:
        """Release files and threads."""


def open_source(
    dataset: ParquetDataset | GeneratedDataset,
    split: SplitName,
    seed: int,
    links: Mapping[str, Link] = PROBABILITIES,
    queries: bool = False,
    found: ParquetScan | None = None,
) -> Source:
    """Open a split; raises DataError with every problem of its files.

    `links` has what predicts each label, and so which values a label may have; a probability where it is not named.
    `found` has the contents of the files, if `scanned` has found them. With `queries` samples of training have query
    ids too, as those of evaluations have where `dataset.group_by` is set.

    The stand-in of a data set whose files are missing is opened like any other. The number of rows depends on the files
    that are found: compare `rows` with the job's number before training.
    """
    if isinstance(dataset, GeneratedDataset):
        return GeneratedSource(dataset.generator, 1, split, seed)
    if uses_stand_in(dataset):
        assert dataset.generator is not None
        return GeneratedSource(
            dataset.generator,
            len(dataset.labels),
            split,
            seed,
            dataset.group_by is not None and (split == "eval" or queries),
        )
    contents = found or scan(dataset)
    return ParquetSource(contents.settled, contents, split, seed, links, queries)


def scanned(dataset: ParquetDataset | GeneratedDataset) -> ParquetScan | None:
    """Return the contents of a data set's files, for several splits of it; None for samples that are made up."""
    return None if isinstance(dataset, GeneratedDataset) or uses_stand_in(dataset) else scan(dataset)


def uses_stand_in(dataset: ParquetDataset) -> bool:
    """Return True if the files are missing and the data set has a generator of samples in their place."""
    return dataset.generator is not None and not any(map(find_files, locate_all(dataset.paths)))


class Ring:
    """A source that repeats the first `batches` steps of another; all of them are read at once."""

    def __init__(self, source: Source, batches: int, batch_size: int, empty: Empty = np.empty) -> None:
        """Keep the batches in arrays made by `empty`; raises ValueError if the source has fewer whole batches."""
        if batches < 1 or batches * batch_size > source.rows:
            raise ValueError(f"{source.rows} rows hold fewer than {batches} batches of {batch_size}")
        self._source, self._size = source, batch_size
        self._batches = [
            source.read(0, slot * batch_size, (slot + 1) * batch_size).copy(empty) for slot in range(batches)
        ]

    @property
    def rows(self) -> int:
        """Rows of the split, as the source has them."""
        return self._source.rows

    @property
    def train_data(self) -> TrainingData:
        """The place of the training split in the source."""
        return self._source.train_data

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of values that reading filled or cut."""
        return self._source.counts

    def read(self, epoch: int, start: int, stop: int) -> Batch:
        """Return the batch at the position of rows [start, stop); `start` is a multiple of the batch size."""
        steps = -(-self._source.rows // self._size)
        batch = self._batches[(epoch * steps + start // self._size) % len(self._batches)]
        return batch if stop - start == self._size else batch.rows(0, stop - start)

    def close(self) -> None:
        """Close the source."""
        self._source.close()
