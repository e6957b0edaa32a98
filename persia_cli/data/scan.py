"""What Parquet files hold, told from their footers: row groups, rows of each split, and every problem."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persia_cli.config.schema.dataset import ColumnSplit, EvalSplit, FileSplit, ParquetDataset, PredictSplit
from persia_cli.control.splits import SplitName
from persia_cli.data.columns import column_problems, list_columns, prepare_first
from persia_cli.data.files import DataFile, Location, find_files, locate
from persia_cli.data.rowgroup import RowGroup, one_line
from persia_cli.data.splits import SplitRows, count_rows
from persia_cli.errors import DataError


@dataclass(frozen=True, slots=True)
class ParquetScan:
    """Files of a data set and what they hold, in the order that rows are numbered in."""

    filesystem: Any
    files: tuple[DataFile, ...]
    groups: tuple[RowGroup, ...]
    lists: frozenset[str]
    """Columns that hold lists, the same in every file."""
    split_rows: SplitRows


@dataclass(slots=True)
class _Findings:
    """Problems so far; the same problem of many files becomes one line."""

    problems: list[str] = field(default_factory=list)
    by_file: dict[str, list[str]] = field(default_factory=dict)
    lists: frozenset[str] | None = None

    def of_file(self, path: str, text: str) -> None:
        self.by_file.setdefault(text, []).append(path)

    def raise_if_any(self) -> None:
        lines = list(self.problems)
        for text, paths in self.by_file.items():
            more = len(paths) - 1
            also = f" and {more} more file{'s' if more > 1 else ''}" if more else ""
            lines.append(f"{paths[0]}{also}: {text}")
        if lines:
            raise DataError("\n".join(lines))


def scan(dataset: ParquetDataset) -> ParquetScan:
    """Look at every file's footer, and at the split column if there is one.

    Raises DataError with all problems, one line each: missing or damaged files, missing or wrong columns, nothing to
    train on.
    """
    place = locate(dataset.path)
    findings = _Findings()
    groups: list[RowGroup] = []
    files: list[DataFile] = []
    first_row = 0
    for part, members in _parts(dataset, place, findings):
        files.extend(members)
        for file in members:
            for number, rows in enumerate(_row_groups(dataset, place.filesystem, file, findings)):
                groups.append(RowGroup(file.path, number, first_row, rows, part))
                first_row += rows
    findings.raise_if_any()
    split_rows = count_rows(dataset.split, place.filesystem, groups)
    _require_rows(dataset, first_row, split_rows)
    return ParquetScan(place.filesystem, tuple(files), tuple(groups), findings.lists or frozenset(), split_rows)


def is_absent(dataset: ParquetDataset) -> bool:
    """Whether there is no data file at all where the data set should be."""
    return not find_files(locate(dataset.path))


def _parts(
    dataset: ParquetDataset, place: Location, findings: _Findings
) -> list[tuple[SplitName | None, tuple[DataFile, ...]]]:
    """Return the files to read, by the split they belong to if files make the split."""
    everything = find_files(place)
    if not everything:
        where = "" if place.path == dataset.path else f" (that is {place.path})"
        remedy = "correct the path" if dataset.recipe is None else f"correct the path, or {prepare_first(dataset)}"
        findings.problems.append(f"dataset.path={dataset.path}{where} does not exist or has no Parquet file; {remedy}")
        return []
    if not isinstance(dataset.split, FileSplit):
        return [(None, everything)]
    train = _matching(place, "train", dataset.split.train, findings)
    evaluation = _matching(place, "eval", dataset.split.eval, findings)
    for file in sorted(set(train) & set(evaluation), key=lambda file: file.path):
        findings.of_file(file.path, "the file is in both splits; let dataset.split.train and dataset.split.eval differ")
    return [("train", train), ("eval", evaluation)]


def _matching(place: Location, name: SplitName, patterns: tuple[str, ...], findings: _Findings) -> tuple[DataFile, ...]:
    found: dict[str, DataFile] = {}
    for pattern in patterns:
        files = find_files(place.below(pattern))
        if not files:
            findings.problems.append(f"dataset.split.{name}: no file below {place.path} matches {pattern}; correct it")
        found.update({file.path: file for file in files})
    return tuple(found[path] for path in sorted(found))


def _row_groups(dataset: ParquetDataset, filesystem: Any, file: DataFile, findings: _Findings) -> list[int]:
    """Return the rows of each row group of a file, and note what is wrong with it."""
    if file.nbytes == 0:
        findings.of_file(file.path, "the file is empty (0 bytes); delete it or prepare it again")
        return []
    try:
        with filesystem.open_input_file(file.path) as source, pq.ParquetFile(source) as parquet:
            metadata, schema = parquet.metadata, parquet.schema_arrow
    except (OSError, pa.ArrowException) as error:
        remedy = "prepare it again" if file.path.endswith(".parquet") else "prepare it by a recipe (persia recipe ls)"
        text = f"this is not a readable Parquet file ({one_line(error)}); {remedy}"
        findings.of_file(file.path, text)
        return []
    for text in column_problems(dataset, schema):
        findings.of_file(file.path, text)
    lists = list_columns(dataset, schema)
    if findings.lists is None:
        findings.lists = lists
    for name in sorted(lists ^ findings.lists):
        findings.of_file(file.path, f"column {name} is a list in some files only; make all files alike")
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


def _require_rows(dataset: ParquetDataset, rows: int, split_rows: SplitRows) -> None:
    """Raise DataError if a split that should have rows has none."""
    split = dataset.split
    if isinstance(split, PredictSplit):
        return  # nothing to score is no mistake
    if rows == 0:
        raise DataError(f"dataset.path={dataset.path}: the files hold no rows; prepare them again")
    if isinstance(split, ColumnSplit):
        for name, value, use in (("train", split.train, "train on"), ("eval", split.eval, "evaluate on")):
            if not sum(split_rows.train if name == "train" else split_rows.eval):
                raise DataError(
                    f"dataset.split leaves nothing to {use}: column {split.column} is never {value}, but "
                    f"{', '.join(split_rows.values)}; correct dataset.split.{name}"
                )
    if not sum(split_rows.train) and not isinstance(split, EvalSplit):
        raise DataError(f"dataset.split leaves nothing to train on of {rows} rows; correct dataset.split")
