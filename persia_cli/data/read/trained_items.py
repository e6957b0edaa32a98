"""The items of the training rows: their distinct ids and how often each occurs, as batches have them on the wire.

They are found in one pass. Those of many rows are kept in a cache, by the content of the files and the settings that
make ids of it, so that one loader of a machine finds them for all.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import GeneratedDataset, ParquetDataset
from persia_cli.config.schema.features import SparseFeature
from persia_cli.data.read.cache import PREFIX, cache_folder, use
from persia_cli.data.read.ids import NULL_ID
from persia_cli.data.read.source import Source, open_source, uses_stand_in
from persia_cli.errors import DataError
from persia_cli.metric import Link

_VERSION = 1
_ROWS = 1 << 14
"""Rows that are read at a time; each may have long lists."""
CACHED_ROWS = 1 << 20
"""Rows from which on a pass takes so long that its result is kept."""


class TrainedItems(NamedTuple):
    """The items of the training rows."""

    ids: NDArray[np.uint64]
    """[N], ascending; without that of nulls."""
    counts: NDArray[np.uint64]
    """[N], the number of occurrences of each."""


def trained_items(
    dataset: ParquetDataset | GeneratedDataset,
    features: Sequence[SparseFeature],
    table: str,
    seed: int,
    links: Mapping[str, Link],
    progress: Callable[[], None] = lambda: None,
) -> TrainedItems:
    """Return the items that any of the `features` that read a table has in a training row.

    `features` are all of the data set; `progress` is called before each read, and while another process reads. Raise
    DataError for files that cannot be read.
    """
    numbers = [number for number, feature in enumerate(features) if feature.table_name == table]
    is_generated = isinstance(dataset, GeneratedDataset) or uses_stand_in(dataset)
    if isinstance(dataset, ParquetDataset) and not is_generated:
        read = tuple(features[number] for number in numbers)
        dataset = dataset.model_copy(update={"dense": (), "sparse": read, "group_by": None, "shuffle": False})
        numbers = list(range(len(read)))
    source = open_source(dataset, "train", seed, links)
    try:
        if is_generated or source.rows < CACHED_ROWS:
            return _count(source, numbers, progress)
        about = (_VERSION, source.train_data, dataset.model_dump_json())
        path = cache_folder().with_name("items") / f"{PREFIX}{sha256(repr(about).encode()).hexdigest()[:40]}.npy"

        def make(part: Path) -> None:
            with part.open("wb") as file:
                np.save(file, np.stack(_count(source, numbers, progress)))

        # Without a cache that can be written and read, each process counts.
        with suppress(DataError, OSError, ValueError, TypeError, EOFError):
            use(path, make, "items are counted", progress)
            return TrainedItems(*np.load(path, mmap_mode="r"))
        return _count(source, numbers, progress)
    finally:
        source.close()


def _count(source: Source, numbers: Sequence[int], progress: Callable[[], None]) -> TrainedItems:
    found = TrainedItems(np.empty(0, np.uint64), np.empty(0, np.uint64))
    waiting: list[NDArray[np.uint64]] = []
    for start in range(0, source.rows, _ROWS):
        progress()
        lists = source.read(0, start, min(start + _ROWS, source.rows)).lists
        waiting += [lists[number][0] for number in numbers]
        # Merged only when many wait, so that all merges together take time as of a few.
        if sum(ids.size for ids in waiting) > max(_ROWS * 64, found.ids.size):
            found, waiting = _merged(found, waiting), []
    found = _merged(found, waiting)
    known = found.ids != np.uint64(NULL_ID)
    return TrainedItems(found.ids[known], found.counts[known])


def _merged(found: TrainedItems, waiting: Sequence[NDArray[np.uint64]]) -> TrainedItems:
    new, counts = np.unique(np.concatenate([found.ids[:0], *waiting]), return_counts=True)
    ids, places = np.unique(np.concatenate([found.ids, new]), return_inverse=True)
    sums = np.zeros(ids.size, np.uint64)
    sums[places[: found.ids.size]] = found.counts
    sums[places[found.ids.size :]] += counts.astype(np.uint64)
    return TrainedItems(ids, sums)
