"""Files of data that grows: what the footers of new ones show, and the contents of those of a portion."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.follow.planner import NewFile, passed_over, planner_of
from persia_cli.data.read.arrow_types import UnusableValueError
from persia_cli.data.read.files import DataFile, locate
from persia_cli.data.read.row_groups import statistics_of
from persia_cli.data.read.scan import Files, ParquetScan, footers, scan
from persia_cli.data.read.times import from_format, microseconds
from persia_cli.data.tables.snapshots import TABLES
from persia_cli.data.tables.table import opened_places
from persia_cli.errors import DataError
from persia_cli.wire.job_messages import MOST_FILES


class MeasuredFile(NamedTuple):
    """A new file that fits the data set."""

    file: NewFile
    rows: int
    content: str
    least: float | None
    greatest: float | None
    """The first and the last time of its samples, in seconds since 1970, if its statistics have them."""


def located(dataset: ParquetDataset, paths: Sequence[str]) -> Files:
    """Return files of a data set that grows, given their paths; raises DataError for one that is not there."""
    [path] = dataset.paths
    if path.startswith(TABLES):
        filesystem, inner, uri = opened_places(paths, path)
    else:
        folder = locate(path)
        filesystem, inner, uri = folder.filesystem, list(paths), folder.uri
    infos = filesystem.get_file_info(inner)
    if missing := next((path for path, info in zip(paths, infos, strict=True) if not info.is_file), None):
        raise DataError(
            f"{missing} was removed before it was trained; restore it, and leave files until their training is saved"
        )
    return filesystem, uri, tuple(DataFile(path, info.size) for path, info in zip(inner, infos, strict=True))


def measured(dataset: ParquetDataset, files: Sequence[NewFile]) -> Iterator[tuple[NewFile, MeasuredFile | str]]:
    """Yield each new file with what its footer shows, or with a sentence if it is passed over.

    Raises DataError for a file that does not fit the data set, whose kinds of columns are settled.
    """
    assert dataset.follow is not None
    if not files:
        return
    filesystem, uri, places = located(dataset, [file.path for file in files])
    for file, (place, footer) in zip(files, footers(dataset, filesystem, places, uri), strict=True):
        if isinstance(footer, str):
            yield file, passed_over("unfit_file", dataset.follow.skip, f"{place.name}: {footer}")
        else:
            times = _times(footer.metadata, dataset.follow.time, dataset.follow.format)
            yield file, MeasuredFile(file, footer.metadata.num_rows, footer.content, *times)


def _times(metadata: Any, column: str | None, form: str | None) -> tuple[float | None, float | None]:
    """Return the least and the greatest time of a file by the statistics of its row groups."""
    if column is None:
        return None, None
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    found: list[Any] = [statistics_of(group, {column}).get(column) for group in groups]
    if not found or not all(statistics is not None and statistics.has_min_max for statistics in found):
        return None, None
    ends = min(statistics.min for statistics in found), max(statistics.max for statistics in found)
    # The order of texts is that of times only as ISO 8601 writes them, without a format.
    form = (form or "seconds") if isinstance(ends[0], int | float) else None
    try:
        least, greatest = microseconds(from_format(pa.array(ends), form)).to_pylist()
    except (UnusableValueError, TypeError):
        return None, None
    return least / 1e6, greatest / 1e6


def scan_of(dataset: ParquetDataset, paths: Sequence[str]) -> ParquetScan:
    """Return the contents of files of a data set that grows, in this order; raises DataError with every problem."""
    return scan(dataset, files=located(dataset, paths))


def first_contents(dataset: ParquetDataset) -> ParquetScan:
    """Return the contents of the first file with rows, which settles what columns hold.

    Raises DataError if none has come yet.
    """
    for file in planner_of(dataset).poll(None, MOST_FILES).files:
        filesystem, uri, [place] = located(dataset, [file.path])
        found = next(footers(dataset, filesystem, [place], uri))[1]
        if isinstance(found, str) or found.metadata.num_rows:
            return scan_of(dataset, [file.path])
    raise DataError(
        f"dataset.path={dataset.place} has no file with rows yet, and the first one settles what its columns hold; "
        "begin when it has come"
    )
