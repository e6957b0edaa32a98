"""Files of data that grows: what the footers of new ones show, and the contents of those of a portion."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple
from urllib.parse import unquote

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.time_format import UNITS
from persia_cli.data.follow.planner import NewFile, passed_over, planner_of
from persia_cli.data.read.files import DataFile, locate
from persia_cli.data.read.row_groups import statistics_of
from persia_cli.data.read.scan import ParquetScan, footers, scan
from persia_cli.errors import DataError


class MeasuredFile(NamedTuple):
    """A new file that fits the data set."""

    file: NewFile
    rows: int
    content: str
    least: float | None
    greatest: float | None
    """The first and the last time of its samples, in seconds since 1970, if its statistics have them."""


def located(paths: Sequence[str]) -> tuple[Any, str | None, tuple[DataFile, ...]]:
    """Return the file system of paths or URIs of one place, the URI of the first one, and the files there.

    Raises DataError for a file that is not there.
    """
    first = locate(paths[0])
    inner = list(paths)
    if first.uri is not None:
        # The file system is opened once: what differs between the URIs is the path below their host.
        host = first.path.removesuffix(_below_host(paths[0]))
        inner = [host + _below_host(path) for path in paths]
    elif first.path != paths[0]:  # file://…, in which signs may be encoded
        inner = [locate(path).path for path in paths]
    infos = first.filesystem.get_file_info(inner)
    if missing := next((path for path, info in zip(paths, infos, strict=True) if not info.is_file), None):
        raise DataError(
            f"{missing} was removed before it was trained; restore it, and leave files until their training is saved"
        )
    files = tuple(DataFile(path, info.size) for path, info in zip(inner, infos, strict=True))
    return first.filesystem, first.uri, files


def _below_host(uri: str) -> str:
    return "/" + unquote(uri.partition("?")[0].partition("://")[2].partition("/")[2])


def measured(dataset: ParquetDataset, files: Sequence[NewFile]) -> tuple[list[MeasuredFile], list[str], int]:
    """Return what the footers of new files show, without those that have no rows.

    Of a file that does not fit the data set, whose kinds of columns are settled, a sentence follows if it is to be
    passed over. If not, the first file raises DataError, and another one ends the list. The number of files that were
    looked at comes last.
    """
    assert dataset.follow is not None
    found: list[MeasuredFile] = []
    skipped: list[str] = []
    if not files:
        return found, skipped, 0
    filesystem, uri, places = located([file.path for file in files])
    for number, (file, (place, footer)) in enumerate(
        zip(files, footers(dataset, filesystem, places, uri), strict=True)
    ):
        if isinstance(footer, str):
            if number and "unfit_file" not in dataset.follow.skip:
                return found, skipped, number
            skipped.append(passed_over("unfit_file", dataset.follow.skip, f"{place.name}: {footer}"))
        elif footer.metadata.num_rows:
            times = _times(footer.metadata, dataset.follow.time, dataset.follow.format)
            found.append(MeasuredFile(file, footer.metadata.num_rows, footer.content, *times))
    return found, skipped, len(files)


def _times(metadata: Any, column: str | None, unit: str | None) -> tuple[float | None, float | None]:
    """Return the least and the greatest time of a file by the statistics of its row groups."""
    if column is None:
        return None, None
    least, greatest = [], []
    for number in range(metadata.num_row_groups):
        statistics = statistics_of(metadata.row_group(number), {column}).get(column)
        if statistics is None or not statistics.has_min_max:
            return None, None
        least.append(statistics.min)
        greatest.append(statistics.max)
    return (_seconds(min(least), unit), _seconds(max(greatest), unit)) if least else (None, None)


def _seconds(value: Any, unit: str | None) -> float | None:
    """Return a time in seconds since 1970; None for a value that is none."""
    if isinstance(value, int | float):
        return float(value * UNITS.get(unit or "seconds", 0.0) / 1e6) or None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        return datetime.combine(value.date(), value.time(), value.tzinfo or UTC).timestamp()
    return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp() if isinstance(value, date) else None


def scan_of(dataset: ParquetDataset, paths: Sequence[str]) -> ParquetScan:
    """Return the contents of files of a data set that grows, in this order; raises DataError with every problem."""
    return scan(dataset, files=located(paths))


def first_contents(dataset: ParquetDataset) -> ParquetScan:
    """Return the contents of the first file, which settles what columns hold; raise DataError if none has come yet."""
    files = planner_of(dataset).poll(None, 1).files
    if not files:
        raise DataError(
            f"dataset.path={dataset.place} has no file yet, and the first one settles what its columns hold; begin "
            "when it has come"
        )
    return scan_of(dataset, [files[0].path])
