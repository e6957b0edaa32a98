"""The contents of Parquet files by their footers: row groups, rows of each split, and every problem."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from persia_cli.config.schema.base import MOST
from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature
from persia_cli.config.schema.split import ColumnSplit, EvalSplit, HashSplit, LastSplit, PredictSplit, TimeSplit
from persia_cli.control.position import SplitName, TrainingData
from persia_cli.data.read.bad_rows import BadRows
from persia_cli.data.read.bad_values import bad_rows_allowed
from persia_cli.data.read.column_kinds import with_kinds
from persia_cli.data.read.columns import (
    changed_as_text,
    classes,
    column_problems,
    label_columns,
    list_columns,
    uses,
)
from persia_cli.data.read.converted import Progress, as_parquet, line_of, silent, unread_rows
from persia_cli.data.read.csv_files import guessed_delimiter, header_flaw, shown_delimiter
from persia_cli.data.read.dense_transforms import column_scales, far_vectors, fit, is_fitted, rescaled, without_none
from persia_cli.data.read.files import DataFile, Format, find_all, format_of, locate_all, without_rows
from persia_cli.data.read.hive import HiveColumns
from persia_cli.data.read.known_values import refuse_absent, refuse_wrong, suspects
from persia_cli.data.read.label_order import Ranges, label_ranges
from persia_cli.data.read.members import members_of
from persia_cli.data.read.nulls import column_nulls
from persia_cli.data.read.parts import times_in
from persia_cli.data.read.row_groups import Footer, RowGroup, RowGroupReader, read_footer
from persia_cli.data.read.splits import Selector, SplitRows, count_rows, selector_of
from persia_cli.data.read.text import TextFile
from persia_cli.data.read.text_numbers import meant_as_numbers
from persia_cli.data.read.training_data import training_data
from persia_cli.data.read.unchanged import content_of
from persia_cli.data.read.vector_widths import with_widths
from persia_cli.errors import DataError, count, one_line

_SHOWN = 5
"""Rows of a file that are reported if they cannot be read."""
SPLIT_USES: dict[SplitName, str] = {"train": "train on", "eval": "evaluate on"}


@dataclass(frozen=True, slots=True)
class ParquetScan:
    """Files of a data set and their contents, in the order that rows are numbered in."""

    filesystem: Any
    files: tuple[DataFile, ...]
    groups: tuple[RowGroup, ...]
    schemas: tuple[Any, ...]
    """Arrow schema of each file, with the columns named by its folders."""
    lists: frozenset[str]
    """Columns that hold lists, the same in every file."""
    split_rows: SplitRows
    selector: Selector
    """Finds the rows of a split."""
    format: Format
    """Format of the data set's own files, before conversion."""
    left_out: str
    """A clause on data files at its paths that are not read; empty if there are none."""
    unread: int
    """Rows of text files that could not be read and were left out."""
    settled: ParquetDataset
    """The data set with what was found from its files: the kind of each feature's ids, statistics for transforms."""
    rescaled: tuple[DenseFeature, ...]
    """Dense columns that got a transform since their numbers are far from 1."""
    far_vectors: tuple[str, ...]
    """Dense columns of lists whose numbers are far from 1."""
    nulls: Counter[str]
    """Nulls of the features' columns that are no lists."""
    label_ranges: tuple[Ranges, ...]
    """The least and the greatest value of each label, by row group."""
    train_data: TrainingData


@dataclass(slots=True)
class _Findings:
    """Problems found so far; the same problem of many files becomes one line."""

    problems: list[str] = field(default_factory=list)
    by_file: dict[str, list[str]] = field(default_factory=dict)
    lists: set[str] = field(default_factory=set)
    classes: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The contents of each column, and the first file that shows them."""

    held: dict[str, set[str]] = field(default_factory=dict)
    """All contents of each column over the files."""

    def note(self, dataset: ParquetDataset, schema: Any) -> None:
        """Record the contents of a file's columns."""
        self.lists |= list_columns(dataset, schema)
        for name, held in classes(dataset, schema).items():
            self.held.setdefault(name, set()).add(held)

    def check(self, dataset: ParquetDataset, file: DataFile, schema: Any, look: Callable[[str], str | None]) -> None:
        """Record the problems of a file's columns, alone and in comparison with earlier files."""
        for text in column_problems(dataset, schema, file.source is not None, look):
            self.of_file(file.name, text)
        for name, held in classes(dataset, schema).items():
            first, other = self.classes.setdefault(name, (held, file.name))
            if held != first:
                self.of_file(file.name, f"column {name} holds {held} here and {first} in {other}; make the files agree")

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


class _Contents:
    """The contents of the files whose footers were read so far, in the order that rows are numbered in."""

    def __init__(self, dataset: ParquetDataset, findings: _Findings) -> None:
        self._dataset, self._findings = dataset, findings
        self._plain = {each.name for each in dataset.dense_features if each.transform is None}
        self._nullable = {use.column for use in uses(dataset) if use.role in ("dense", "sparse")}
        self._nullable |= {*label_columns(dataset)} if dataset.has_optional_labels else set()
        self.files: list[DataFile] = []
        self.schemas: list[Any] = []
        self.groups: list[RowGroup] = []
        self.unread: dict[str, BadRows] = {}
        self.contents: dict[str, str] = {}
        self.scales: dict[str, float] = {}
        self.nulls: Counter[str] = Counter()
        self.suspects: list[tuple[str, ...]] = []
        self.label_ranges: list[Ranges] = []
        self.rows = 0

    def add(
        self,
        part: SplitName | None,
        file: DataFile,
        footer: Footer,
        hive: HiveColumns,
        line_of: Callable[[int], int | None] | None,
    ) -> None:
        """Add a file of the split `part` (None if files do not make the split); `line_of` is for its text file."""
        metadata = footer.metadata
        own = metadata.schema.to_arrow_schema()
        self.files.append(file)
        self.schemas.append(hive.schema(file.name, own))
        self._findings.note(self._dataset, self.schemas[-1])
        self.unread[file.name] = unread_rows(metadata)
        for name, scale in column_scales(metadata, self._plain).items():
            self.scales[name] = max(scale, self.scales.get(name, 0.0))
        self.nulls += column_nulls(metadata, self._nullable)
        constants, start = hive.constants(file.name, own), self.rows
        lists = _list_places(self._dataset, self.schemas[-1], metadata)
        for number in range(metadata.num_row_groups):
            group, before = metadata.row_group(number), self.rows - start
            self.groups.append(
                RowGroup(
                    file.path,
                    number,
                    self.rows,
                    group.num_rows,
                    part,
                    constants,
                    file.source,
                    before,
                    line_of,
                    group.total_byte_size,
                    _list_bytes(group, lists),
                    "" if file.source else footer.version,  # each use of a conversion sets its time
                )
            )
            self.suspects.append(suspects(self._dataset, group))
            self.label_ranges.append(label_ranges(group, label_columns(self._dataset)))
            self.rows += group.num_rows


def _list_places(dataset: ParquetDataset, schema: Any, metadata: Any) -> list[tuple[int, int]]:
    """Return the columns of sparse lists: their number in the file, and the length that their lists are cut to."""
    names = list_columns(dataset, schema) | {each.column_name for each in dataset.sparse if each.makes_lists}
    paths = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    return [
        (place, each.max_length or MOST)
        for each in dataset.sparse
        for place, path in enumerate(paths if each.column_name in names else ())
        if f"{path}.".startswith(f"{each.column_name}.")
    ]


def _list_bytes(group: Any, lists: Sequence[tuple[int, int]]) -> int:
    """Return about the bytes of a row group's ids in lists; a text holds an id in 8 bytes."""
    columns = [(group.column(place), length) for place, length in lists]
    return sum(
        8 * min(max(column.num_values, column.total_uncompressed_size // 8), group.num_rows * length)
        for column, length in columns
    )


def scan(dataset: ParquetDataset, progress: Progress = silent) -> ParquetScan:
    """Read every file's footer, and the split column if there is one; text files are converted first.

    Raises DataError with all problems, one line each: missing or damaged files, missing or wrong columns, nothing to
    train on.
    """
    places = locate_all(dataset.paths)
    filesystem = places[0].filesystem
    findings = _Findings()
    found_files = members_of(dataset, places)
    kind, parts = found_files.format, found_files.parts
    findings.problems += found_files.problems
    texts = filesystem
    if kind != "parquet":
        members = tuple(file for _, files in parts for file in files)
        converted = dict(zip(members, as_parquet(filesystem, members, kind, dataset.csv, progress), strict=True))
        parts = tuple((part, tuple(converted[file] for file in files)) for part, files in parts)
        filesystem = LocalFileSystem()
    hive = HiveColumns(file.name for _, members in parts for file in members)
    found = _Contents(dataset, findings)
    for part, members in parts:
        for file in members:
            footer = _footer(filesystem, file, places[0].uri if kind == "parquet" else None, findings)
            if footer is not None:
                text = file.source and TextFile(file.source, filesystem=texts)
                found.contents[file.name] = _content(texts, file, footer)
                found.add(part, file, footer, hive, partial(line_of, text, kind, dataset.csv) if text else None)
    if kind == "csv":
        for file, schema in zip(found.files, found.schemas, strict=True):
            text = TextFile(file.name, filesystem=texts)
            if all(use.column in schema.names for use in uses(dataset)):
                continue
            if (delimiter := guessed_delimiter(text, dataset.csv)) is not None:
                shown = shown_delimiter(delimiter)
                findings.of_file(
                    file.name, f"another character seems to divide its columns; set dataset.csv.delimiter={shown}"
                )
            elif (flaw := header_flaw(text, dataset.csv)) is not None:
                findings.of_file(file.name, flaw)
        findings.raise_if_any()
    _allow(found.unread, dataset.max_bad_rows)
    settled = with_kinds(dataset, findings.held, kind != "parquet")
    for file, schema in zip(found.files, found.schemas, strict=True):
        findings.check(settled, file, schema, partial(_meant_as_numbers, dataset, kind, filesystem, found, file))
        if kind == "csv":
            for problem in changed_as_text(settled, schema):
                findings.of_file(file.name, problem)
    findings.raise_if_any()
    settled = with_widths(settled, filesystem, found.groups, found.schemas)
    selector = selector_of(dataset.split, filesystem, found.groups)
    settled = settled.model_copy(update={"split": selector.split})
    split_rows = count_rows(selector, filesystem, found.groups)
    _require_rows(dataset, kind, found.rows, split_rows, lambda: times_in(selector.split, filesystem, found.groups))
    if not bad_rows_allowed(settled):
        refuse_wrong(settled, filesystem, found.groups, selector, found.suspects)
    refuse_absent(dataset, filesystem, found.groups)
    before = settled.dense_features
    vectors: tuple[str, ...] = ()
    if settled.rescale:
        trained = [group for group, rows in zip(found.groups, split_rows.train, strict=True) if rows]
        vectors = far_vectors(settled, filesystem, trained)
        settled = rescaled(settled, filesystem, found.groups, selector, split_rows.train, found.scales)
    far = tuple(each for each, old in zip(settled.dense_features, before, strict=True) if each != old)
    settled = without_none(settled)
    if not is_fitted(settled):
        settled = fit(settled, filesystem, found.groups, selector, split_rows.train)
    return ParquetScan(
        filesystem=filesystem,
        files=tuple(found.files),
        groups=tuple(found.groups),
        schemas=tuple(found.schemas),
        lists=frozenset(findings.lists),
        split_rows=split_rows,
        selector=selector,
        format=kind,
        left_out=found_files.left_out,
        unread=sum(each.count for each in found.unread.values()),
        settled=settled,
        rescaled=far,
        far_vectors=vectors,
        nulls=found.nulls,
        label_ranges=tuple(found.label_ranges),
        train_data=training_data(settled, found.groups, split_rows, found.contents),
    )


def is_absent(dataset: ParquetDataset) -> bool:
    """Return True if no data file exists at the data set's paths."""
    return not find_all(locate_all(dataset.paths))


def no_parquet(file: DataFile, error: Exception) -> str:
    """Return a sentence on a file that cannot be read as Parquet."""
    remedy = "prepare it again" if format_of(file.path) else "if it is text, set dataset.format=csv (or jsonl)"
    return f"this is not a readable Parquet file ({one_line(error)}); {remedy}"


def _footer(filesystem: Any, file: DataFile, uri: str | None, findings: _Findings) -> Footer | None:
    """Return a file's footer, or record its problem and return None."""
    if file.nbytes == 0:
        findings.of_file(file.name, "the file is empty (0 bytes); delete it or prepare it again")
        return None
    try:
        return read_footer(filesystem, file, uri)
    except (OSError, pa.ArrowException) as error:
        findings.of_file(file.name, no_parquet(file, error))
        return None


def _content(filesystem: Any, file: DataFile, footer: Footer) -> str:
    """Return what identifies the content of a file, or of the text that it was converted from; raises DataError."""
    known = () if file.source else (footer.metadata, footer.version)
    try:
        return content_of(filesystem, file.name, *known)
    except OSError as error:
        raise DataError(f"{file.name} cannot be read ({one_line(error)}); restore the file") from error


def _meant_as_numbers(
    dataset: ParquetDataset, kind: Format, filesystem: Any, found: _Contents, file: DataFile, name: str
) -> str | None:
    """Return a sentence on a column of texts in a file, by its first rows."""
    group = next((group for group in found.groups if group.path == file.path and group.rows), None)
    if group is None or name in group.constants:
        return None
    with RowGroupReader(filesystem) as reader:
        return meant_as_numbers(name, reader.read(group, [name]).column(name), kind, dataset.csv.nulls)


def _allow(unread: dict[str, BadRows], most: int) -> None:
    """Raise DataError if more than `most` rows could not be read."""
    total = sum(each.count for each in unread.values())
    if total <= most:
        return
    first = "\n".join(f"  {path} {row}" for path, each in unread.items() for row in each.found[:_SHOWN])
    raise DataError(
        f"{total} row{'s' if total > 1 else ''} cannot be read, and dataset.max_bad_rows={most} may be left out; "
        f"correct them or give a higher limit; the first:\n{first}"
    )


def _require_rows(
    dataset: ParquetDataset, kind: Format, rows: int, split_rows: SplitRows, times: Callable[[], str]
) -> None:
    """Raise DataError if a split that should have rows has none; `times` returns a clause on those of a time split."""
    split = dataset.split
    if isinstance(split, PredictSplit):
        return  # an empty input to score is not an error
    if rows == 0:
        raise DataError(f"dataset.path={dataset.place}: {without_rows(kind)}")
    if isinstance(split, ColumnSplit):
        for name, use in SPLIT_USES.items():
            if not sum(split_rows.of(name)):
                wanted = " or ".join(map(str, split.values(name))) or f"anything but {split.eval}"
                raise DataError(
                    f"dataset.split leaves nothing to {use}: column {split.column} is never {wanted}, but "
                    f"{', '.join(split_rows.values)}; correct dataset.split.{name}"
                )
    if isinstance(split, TimeSplit | HashSplit | LastSplit) and not sum(split_rows.eval):
        use = SPLIT_USES["eval"]
    elif not isinstance(split, EvalSplit) and not sum(split_rows.train):
        use = SPLIT_USES["train"]
    else:
        return
    there = times() if isinstance(split, TimeSplit) else ""
    raise DataError(f"dataset.split leaves nothing to {use} of {count(rows, 'row')}{there}; correct dataset.split")
