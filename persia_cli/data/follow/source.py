"""The samples of portions, as a source whose epochs are the portions."""

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.control.position import MADE_UP, TrainingData
from persia_cli.data.follow.files import scan_of
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.parquet import ParquetSource
from persia_cli.errors import DataError
from persia_cli.metric import Link
from persia_cli.wire.job_messages import DataPortion


class PortionSource:
    """The rows of a portion in the order of its number; the next portion is opened while the last block is in memory.

    Portions that are older than the one that is read are forgotten, except the one before it.
    """

    def __init__(self, dataset: ParquetDataset, seed: int, links: Mapping[str, Link], queries: bool) -> None:
        self._dataset, self._seed, self._links, self._queries = dataset, seed, links, queries
        self._portions: dict[int, DataPortion] = {}
        self._opened: dict[int, Future[ParquetSource]] = {}
        """The portion that is read, by its number, and the next one."""
        self._present: ParquetSource | None = None
        self._counts: Counter[str] = Counter()
        """Numbers of values that reading filled or cut in portions that are closed."""
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="persia-portion")

    @property
    def numbers(self) -> tuple[int, ...]:
        """The portions that may be read."""
        return tuple(self._portions)

    def add(self, portion: DataPortion) -> None:
        """Add a portion, which may be read from now on; another thread may read meanwhile."""
        self._portions = {**self._portions, portion.number: portion}

    def rows_of(self, number: int) -> int:
        """Return the rows of a portion that may be read."""
        return self._portions[number].rows

    @property
    def rows(self) -> int:
        """Rows of the portion that is read."""
        return self._present.rows if self._present is not None else 0

    @property
    def train_data(self) -> TrainingData:
        """None: portions have their own checksums."""
        return MADE_UP

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of values that reading filled or cut so far."""
        present = self._present  # another thread may close it
        return dict(self._counts + Counter(present.counts if present is not None else {}))

    def read(self, epoch: int, start: int, stop: int) -> Batch:
        """Return rows [start, stop) of the portion with the number `epoch`; raises DataError."""
        source = self._begin(epoch).result()
        if source is not self._present:
            self._leave(keep=epoch)
            self._present = source
            self._portions = {number: known for number, known in self._portions.items() if number >= epoch - 1}
        batch = source.read(epoch, start, stop)
        if source.at_last_block and epoch + 1 in self._portions:
            self._begin(epoch + 1)
        return batch

    def close(self) -> None:
        """Release files and threads."""
        self._leave()
        self._opener.shutdown(wait=True)

    def _begin(self, number: int) -> Future[ParquetSource]:
        """Begin to open a portion, unless that is done."""
        if number not in self._opened:
            self._opened[number] = self._opener.submit(self._new, number)
        return self._opened[number]

    def _leave(self, keep: int | None = None) -> None:
        """Close all portions but one."""
        if self._present is not None:
            self._counts.update(self._present.counts)
            self._present = None
        for number in self._opened.keys() - {keep}:
            with suppress(Exception):  # an error belongs to a portion that is not read
                self._opened.pop(number).result().close()

    def _new(self, number: int) -> ParquetSource:
        """Open a portion and begin to decode its first block; raises DataError if its files are others now."""
        portion = self._portions[number]
        found = scan_of(self._dataset, [file.path for file in portion.files])
        for file, content in zip(portion.files, found.train_data.contents, strict=True):
            if file.content != content:
                raise DataError(
                    f"{file.path} has changed since it was recorded (portion {number} of portions.jsonl), so other "
                    "samples would be trained; restore it, and write new data into new files"
                )
        # The run has settled the data set; what a scan finds for itself is of these files alone.
        source = ParquetSource(self._dataset, found, "train", self._seed, self._links, self._queries, once=True)
        source.prefetch(number)
        return source
