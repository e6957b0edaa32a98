"""The source of a data loader's samples, for every kind of data set."""

from typing import Protocol

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.generated import GeneratedDataset
from persia_cli.control.splits import SplitName
from persia_cli.data.batch import Batch
from persia_cli.data.generator import GeneratedSource
from persia_cli.data.parquet import ParquetSource
from persia_cli.data.scan import is_absent, scan


class Source(Protocol):
    """One split of a data set, its rows numbered in the order of each epoch; used by one thread."""

    @property
    def rows(self) -> int:
        """Rows of the split, the same in every epoch."""

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of values that reading filled or cut so far: `filled_dense_values`, `truncated_sequences`."""

    def read(self, epoch: int, start: int, stop: int) -> Batch:
        """Return rows [start, stop) of an epoch; reading on from the end of the last call is fast."""

    def close(self) -> None:
        """Release files and threads."""


def open_source(dataset: ParquetDataset | GeneratedDataset, split: SplitName, seed: int) -> Source:
    """Open a split; raises DataError with every problem of its files.

    The stand-in of a data set whose files are missing is opened like any other. The number of rows depends on the files
    that are found: compare `rows` with the job's number before training.
    """
    if isinstance(dataset, GeneratedDataset):
        return GeneratedSource(dataset.generator, 1, split, seed)
    if uses_stand_in(dataset):
        assert dataset.stand_in is not None
        return GeneratedSource(dataset.stand_in, len(dataset.labels), split, seed, dataset.group_by is not None)
    found = scan(dataset)
    return ParquetSource(found.settled, found, split, seed)


def uses_stand_in(dataset: ParquetDataset) -> bool:
    """Return True if the files are missing and the config allows generated samples in their place."""
    return dataset.if_missing == "generate" and is_absent(dataset)
