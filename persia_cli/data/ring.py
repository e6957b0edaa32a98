"""A few batches kept in memory and repeated, for measurements that are to leave out reading."""

import numpy as np

from persia_cli.data.batch import Batch
from persia_cli.data.source import Source
from persia_cli.kernels.memory import Empty


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
