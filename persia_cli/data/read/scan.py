"""The contents of Parquet files by their footers: row groups, rows of each split, and every problem."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from persia_cli.config.schema.base import MOST
from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature
from persia_cli.config.schema.split import ColumnSplit, EvalSplit, HashSplit, LastSplit, PredictSplit, TimeSplit
from persia_cli.control.position import SplitName, TrainingData
from persia_cli.data.read.bad_rows import BadRows, bad_rows_allowed
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
from persia_cli.data.read.dense_transforms import far_vectors, fit, rescaled, scale_of, without_none
from persia_cli.data.read.files import DataFile, Format, format_of, locate_all, without_rows
from persia_cli.data.read.histories import Events, Histories, open_histories, windows, without_ready
from persia_cli.data.read.known_values import refuse_absent, refuse_wrong, suspects
from persia_cli.data.read.members import Members, members_of
from persia_cli.data.read.order import training_data
from persia_cli.data.read.row_groups import Footer, GroupedRows, HiveColumns, RowGroup, read_footer, statistics_of
from persia_cli.data.read.settled import meant_as_numbers, with_kinds, with_widths
from persia_cli.data.read.splits import Selector, SplitRows, TrainingRows, all_parts, count_rows, selector_of, values_in
from persia_cli.data.read.text import TextFile
from persia_cli.data.read.unchanged import content_of
from persia_cli.data.tables.snapshots import at_present
from persia_cli.errors import DataError, count, one_line

_SHOWN = 5
"""Rows of a file that are reported if they cannot be read."""
Ranges = Mapping[str, tuple[Any, Any]]
"""The least and the greatest value of each label in a row group, where they are known."""
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
    """Columns that hold lists, the same in every file; those of histories too."""
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
    histories: Histories
    """The data set's histories, with the stores of their events."""


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
        for name, content in classes(dataset, schema).items():
            self.held.setdefault(name, set()).add(content)

    def check(self, dataset: ParquetDataset, file: DataFile, schema: Any, look: Callable[[str], str | None]) -> None:
        """Record the problems of a file's columns, alone and in comparison with earlier files."""
        for text in column_problems(dataset, schema, file.source is not None, look):
            self.of_file(file.name, text)
        for name, content in classes(dataset, schema).items():
            first, other = self.classes.setdefault(name, (content, file.name))
            if content != first:
                self.of_file(
                    file.name, f"column {name} holds {content} here and {first} in {other}; make the files agree"
                )

    def of_file(self, path: str, text: str) -> None:
        self.by_file.setdefault(text, []).append(path)

    def raise_if_any(self) -> None:
        lines = list(self.problems)
        for text, paths in self.by_file.items():
            more = len(paths) - 1
            also = f" and {count(more, 'more file')}" if more else ""
            lines.append(f"{paths[0]}{also}: {text}")
        if lines:
            raise DataError("\n".join(lines))


class _Contents:
    """The contents of the files whose footers were read so far, in the order that rows are numbered in."""

    def __init__(self, dataset: ParquetDataset, findings: _Findings) -> None:
        self._dataset, self._findings = dataset, findings
        self._plain = {feature.name for feature in dataset.dense_features if feature.transform is None}
        self._nullable = {use.column for use in uses(dataset) if use.role in ("dense", "sparse")}
        self._nullable |= {*label_columns(dataset)} if dataset.has_optional_labels else set()
        self._columns = {use.column for use in uses(dataset)}
        self.files: list[DataFile] = []
        self.schemas: list[Any] = []
        self.groups: list[RowGroup] = []
        self.unread: dict[str, BadRows] = {}
        self.contents: dict[str, str] = {}
        self._copies: Counter[str] = Counter()
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
        file_schema = metadata.schema.to_arrow_schema()
        self.files.append(file)
        self.schemas.append(hive.schema(file.name, file_schema))
        self._findings.note(self._dataset, self.schemas[-1])
        self.unread[file.name] = unread_rows(metadata)
        constants, start = hive.constants(file.name, file_schema), self.rows
        content = self.contents[file.name]
        copies = self._copies[content]
        self._copies[content] += 1
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
                    (content, copies),
                )
            )
            self._add_statistics(statistics_of(group, self._columns))
            self.rows += group.num_rows

    def _add_statistics(self, known: Mapping[str, Any]) -> None:
        """Record what the statistics of a row group show of its columns."""
        for name in (name for name in known if name in self._plain):
            self.scales[name] = max(scale_of(known[name]), self.scales.get(name, 0.0))
        known = {name: statistics for name, statistics in known.items() if statistics is not None}
        with_nulls = (name for name in known if name in self._nullable and known[name].has_null_count)
        self.nulls.update({name: known[name].null_count for name in with_nulls})
        self.suspects.append(suspects(self._dataset, known))
        ranges = {name: statistics for name, statistics in known.items() if name in label_columns(self._dataset)}
        self.label_ranges.append(
            {name: (statistics.min, statistics.max) for name, statistics in ranges.items() if statistics.has_min_max}
        )


def _list_places(dataset: ParquetDataset, schema: Any, metadata: Any) -> list[tuple[int, int]]:
    """Return the columns of sparse lists: their number in the file, and the length that their lists are cut to."""
    names = list_columns(dataset, schema) | {feature.column_name for feature in dataset.sparse if feature.makes_lists}
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    return [
        (number, feature.max_length or MOST)
        for feature in dataset.sparse
        for number, path in enumerate(paths if feature.column_name in names else ())
        if f"{path}.".startswith(f"{feature.column_name}.")
    ]


def _list_bytes(group: Any, lists: Sequence[tuple[int, int]]) -> int:
    """Return about the bytes of a row group's ids in lists; a text holds an id in 8 bytes."""
    columns = [(group.column(number), length) for number, length in lists]
    return sum(
        8 * min(max(column.num_values, column.total_uncompressed_size // 8), group.num_rows * length)
        for column, length in columns
    )


Files = tuple[Any, str | None, tuple[DataFile, ...]]
"""A file system, the URI of a place on it if it is on other machines, and Parquet files there."""


def scan(dataset: ParquetDataset, progress: Progress = silent, files: Files | None = None) -> ParquetScan:
    """Read every file's footer, and the split column if there is one; text files are converted first.

    The data set's `files` are those at its paths, unless they are given. Raises DataError with all problems, one line
    each: missing or damaged files, missing or wrong columns, nothing to train on.
    """
    findings = _Findings()
    if files is None:
        dataset = _at_present(dataset)
        places = locate_all(dataset.paths)
        filesystem, uri = places[0].filesystem, places[0].uri
        members_found = members_of(dataset, places)
    else:
        filesystem, uri, given = files
        members_found = Members("parquet", ((None, given),), (), "")
    kind, parts = members_found.format, members_found.parts
    findings.problems += members_found.problems
    texts = filesystem
    if kind != "parquet":
        members = tuple(file for _, files in parts for file in files)
        converted = dict(zip(members, as_parquet(filesystem, members, kind, dataset.csv, progress), strict=True))
        parts = tuple((part, tuple(converted[file] for file in files)) for part, files in parts)
        filesystem = LocalFileSystem()
    hive = HiveColumns(file.name for _, members in parts for file in members)
    contents = _Contents(dataset, findings)
    for part, members in parts:
        for file in members:
            footer = _footer(filesystem, file, uri if kind == "parquet" else None, findings)
            if footer is not None:
                text = file.source and TextFile(file.source, filesystem=texts)
                contents.contents[file.name] = _content(texts, file, footer)
                contents.add(part, file, footer, hive, partial(line_of, text, kind, dataset.csv) if text else None)
    if len((other := without_ready(dataset, contents.schemas)).histories) < len(dataset.histories):
        return scan(other, progress, files)
    if kind == "csv":
        for file, schema in zip(contents.files, contents.schemas, strict=True):
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
    _allow(contents.unread, dataset.max_bad_rows)
    settled = with_kinds(dataset, findings.held, kind != "parquet")
    for file, schema in zip(contents.files, contents.schemas, strict=True):
        findings.check(settled, file, schema, partial(_meant_as_numbers, dataset, kind, filesystem, contents, file))
        if kind == "csv":
            for problem in changed_as_text(settled, schema):
                findings.of_file(file.name, problem)
    findings.raise_if_any()
    rows = GroupedRows(filesystem, contents.groups)
    histories = open_histories(settled, tuple(contents.schemas), partial(_events, progress=progress))
    settled = with_widths(histories.dataset, rows, contents.schemas)
    selector = _with_windows(selector_of(dataset.split, rows), histories, rows)
    settled = settled.model_copy(update={"split": selector.split})
    split_rows = count_rows(selector, rows)
    _require_rows(dataset, kind, contents.rows, split_rows, lambda: values_in(selector.split, rows))
    if not bad_rows_allowed(settled):
        refuse_wrong(settled, rows, selector, contents.suspects)
    refuse_absent(dataset, rows)
    before = settled.dense_features
    vectors: tuple[str, ...] = ()
    trained = TrainingRows(rows, selector, split_rows.train)
    if settled.rescale:
        vectors = far_vectors(settled, trained)
        settled = rescaled(settled, trained, contents.scales)
    far = tuple(feature for feature, old in zip(settled.dense_features, before, strict=True) if feature != old)
    settled = fit(without_none(settled), trained)
    events = [store.digest for store in histories.stores.values()]
    return ParquetScan(
        filesystem=filesystem,
        files=tuple(contents.files),
        groups=tuple(contents.groups),
        schemas=tuple(contents.schemas),
        lists=frozenset(findings.lists) | histories.columns,
        split_rows=split_rows,
        selector=selector,
        format=kind,
        left_out=members_found.left_out,
        unread=sum(rows.count for rows in contents.unread.values()),
        settled=settled,
        rescaled=far,
        far_vectors=vectors,
        nulls=contents.nulls,
        label_ranges=tuple(contents.label_ranges),
        train_data=training_data(settled, contents.groups, split_rows, contents.contents, events),
        histories=histories,
    )


def _at_present(dataset: ParquetDataset) -> ParquetDataset:
    """Return the data set with the present snapshots of its tables, which a job then reads to its end, and resumed."""
    if dataset.follow is not None:
        return dataset  # its planner begins at the position of the record

    def pinned(given: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        return at_present(given) if isinstance(given, str) else given and tuple(map(at_present, given))

    histories = {
        name: history.model_copy(update={"path": pinned(history.path)}) for name, history in dataset.histories.items()
    }
    return dataset.model_copy(update={"path": pinned(dataset.path), "histories": histories})


class KnownFooter(NamedTuple):
    """The metadata of a file that fits a data set, and what identifies its content."""

    metadata: Any
    content: str


def footers(
    dataset: ParquetDataset, filesystem: Any, files: Sequence[DataFile], uri: str | None
) -> Iterator[tuple[DataFile, KnownFooter | str]]:
    """Yield each file with its footer, or with a sentence on why it does not fit the data set, as `scan` settled it.

    Reads nothing but footers and what a checksum needs.
    """
    hive = HiveColumns(file.name for file in files)
    for file in files:
        findings = _Findings()
        footer = _footer(filesystem, file, uri, findings)
        if footer is not None:
            schema = hive.schema(file.name, footer.metadata.schema.to_arrow_schema())
            findings.check(dataset, file, schema, lambda name: None)
        if problem := next(iter(findings.by_file), None):
            yield file, problem
        elif footer is not None:
            yield file, KnownFooter(footer.metadata, _content(filesystem, file, footer))


def _events(dataset: ParquetDataset, progress: Progress) -> Events:
    """Return the contents of the files of a history's events."""
    found = scan(dataset, progress)
    rows = GroupedRows(found.filesystem, found.groups)
    return Events(found.settled, found.schemas, found.lists, rows)


def _with_windows(selector: Selector, histories: Histories, rows: GroupedRows) -> Selector:
    """Return what finds the rows of a split if training samples are the last ones of windows."""
    dataset = histories.dataset
    if dataset.samples is None or isinstance(selector.split, PredictSplit | EvalSplit):
        return selector
    name = dataset.samples.of
    return Selector(selector.split, windows(all_parts(selector, rows), rows.groups, histories, name))


def no_parquet(file: DataFile, error: Exception) -> str:
    """Return a sentence on a file that cannot be read as Parquet."""
    if isinstance(error, FileNotFoundError):
        return "the file does not exist any more; restore it, or read a later snapshot, if it is of a table"
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
    dataset: ParquetDataset, kind: Format, filesystem: Any, contents: _Contents, file: DataFile, name: str
) -> str | None:
    """Return a sentence on a column of texts in a file, by its first rows."""
    group = next((group for group in contents.groups if group.path == file.path and group.rows), None)
    if group is None or name in group.constants:
        return None
    [(_, table)] = GroupedRows(filesystem, [group]).read([name])
    return meant_as_numbers(name, table.column(name), kind, dataset.csv.nulls)


def _allow(unread: dict[str, BadRows], most: int) -> None:
    """Raise DataError if more than `most` rows could not be read."""
    total = sum(rows.count for rows in unread.values())
    if total <= most:
        return
    first = "\n".join(f"  {path} {row}" for path, rows in unread.items() for row in rows.found[:_SHOWN])
    raise DataError(
        f"{count(total, 'row')} cannot be read, and dataset.max_bad_rows={most} may be left out; "
        f"correct them or give a higher limit; the first:\n{first}"
    )


def _require_rows(
    dataset: ParquetDataset, kind: Format, rows: int, split_rows: SplitRows, values: Callable[[], str]
) -> None:
    """Raise DataError if a split that should have rows has none; `values` returns those of its column."""
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
                    f"{values()}; correct dataset.split.{name}"
                )
    if isinstance(split, TimeSplit | HashSplit | LastSplit) and not sum(split_rows.eval):
        use = SPLIT_USES["eval"]
    elif not isinstance(split, EvalSplit) and not sum(split_rows.train):
        use = SPLIT_USES["train"]
    else:
        return
    there = f", whose {split.column} is {values()}" if isinstance(split, TimeSplit) else ""
    raise DataError(f"dataset.split leaves nothing to {use} of {count(rows, 'row')}{there}; correct dataset.split")
