"""The facts about a data set that are known before training."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import GeneratedDataset, ParquetDataset
from persia_cli.config.schema.features import SparseFeature
from persia_cli.config.schema.split import EvalSplit, PredictSplit
from persia_cli.control.position import MADE_UP, TrainingData
from persia_cli.data.follow.files import first_contents
from persia_cli.data.read.columns import prepare_command
from persia_cli.data.read.converted import Progress, silent
from persia_cli.data.read.decode import decode_ids
from persia_cli.data.read.events import EventStore
from persia_cli.data.read.files import NOUNS
from persia_cli.data.read.order import block_size
from persia_cli.data.read.row_groups import GroupedRows, RowGroup
from persia_cli.data.read.scan import ParquetScan, Ranges, scan
from persia_cli.data.read.source import uses_stand_in
from persia_cli.data.read.splits import TrainingRows
from persia_cli.errors import DataError, count

_SHOWN_NULLS = 5
_READ_ROWS = 1 << 20
"""Training rows, about, whose histories are looked at."""
_READ_LISTS = 1 << 16
"""Training rows, about, whose lists are looked at."""
LEAST_ROWS = 16
"""Rows from which on a row group counts: in fewer rows a label often has one value by chance."""
RARE_ROWS = 10_000
"""Mean rows of row groups that show data as sorted even if only one value fills whole row groups."""


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """Size and shape of a data set."""

    train_rows: int
    eval_rows: int
    dense: int
    """Dense inputs of the network."""
    sparse: tuple[SparseFeature, ...]
    """Sparse features, in the order of their ids in batches."""
    tasks: int
    """Label columns."""
    source: str
    """One sentence on the samples' origin, for people."""
    stand_in: bool = False
    """True if the files are missing and generated samples replace them."""
    left_out: str = ""
    """A clause on data files at its paths that are not read; empty if there are none."""
    test_rows: int = 0
    """Rows that are set aside for a test; 0 where other files have them."""
    unused_rows: int = 0
    """Rows that are in no split, or that windows leave out."""
    window_rows: int = 0
    """Training rows that are no samples, but events of windows."""
    files: int = 0
    settled: ParquetDataset | None = None
    """The data set with all that was found from its files, if it has files."""
    warnings: tuple[str, ...] = ()
    """Sentences on problems that may spoil training."""
    train_data: TrainingData = MADE_UP
    found: ParquetScan | None = None
    """The contents of its files, if it has files."""


def made_up(dataset: ParquetDataset) -> str:
    """Return a sentence on the stand-in of a data set, with the command that puts the real data in its place."""
    remedy = "" if dataset.recipe is None else f"; for the real ones: {prepare_command(dataset)}"
    return f"made-up samples in place of the missing files at {dataset.place}{remedy}"


def inspect(dataset: ParquetDataset | GeneratedDataset, progress: Progress = silent) -> DatasetFacts:
    """Examine a data set, and convert its text files; raises DataError with every problem, one line each."""
    if isinstance(dataset, GeneratedDataset):
        generator = dataset.generator
        names = tuple(SparseFeature(name=f"feature_{number}") for number in range(len(generator.cardinalities)))
        text = "generated samples with a planted model"
        return DatasetFacts(generator.train_rows, generator.eval_rows, generator.dense, names, 1, text)
    if uses_stand_in(dataset):
        invented = dataset.generator
        assert invented is not None
        text, tasks = made_up(dataset), len(dataset.labels)
        rows = invented.train_rows, invented.eval_rows
        return DatasetFacts(*rows, invented.dense, dataset.sparse, tasks, text, stand_in=True)
    contents = scan(dataset, progress) if dataset.follow is None else first_contents(dataset)
    train_rows, eval_rows = sum(contents.split_rows.train), sum(contents.split_rows.eval)
    test_rows, window_rows = contents.split_rows.test, contents.split_rows.in_window
    known_rows = train_rows + eval_rows + test_rows + window_rows
    nbytes = sum(file.nbytes for file in contents.files)
    files = count(len(contents.files), f"{NOUNS[contents.format]} file")
    text = f"{files} at {contents.settled.place}, {_size(nbytes)}"
    if dataset.follow is not None:
        text = (
            f"files that come to {dataset.place}; the first, {contents.files[0].name}, has {count(train_rows, 'row')}"
        )
    if contents.unread:
        text += f", {count(contents.unread, 'unreadable row')} left out"
    text += "".join(_events(name, store) for name, store in contents.histories.stores.items())
    if (shares := _null_shares(contents.nulls, sum(group.rows for group in contents.groups))) is not None:
        text += f", {shares}"
    return DatasetFacts(
        train_rows=train_rows,
        eval_rows=eval_rows,
        left_out=contents.left_out,
        test_rows=test_rows,
        unused_rows=sum(group.rows for group in contents.groups) - known_rows,
        window_rows=window_rows,
        files=len(contents.files),
        dense=contents.settled.dense_width,
        sparse=contents.settled.sparse,
        tasks=len(dataset.labels),
        source=text,
        settled=contents.settled,
        warnings=() if isinstance(dataset.split, PredictSplit | EvalSplit) else _warnings(contents),
        train_data=contents.train_data,
        found=contents,
    )


def _warnings(contents: ParquetScan) -> tuple[str, ...]:
    by_label = sorted_labels(contents.settled, contents.groups, contents.label_ranges, contents.split_rows.train)
    lists = *_single_values(contents), *_lone_tables(contents), *_far_vectors(contents)
    return (*lists, *_without_history(contents), *_without_elements(contents), *by_label)


def _events(name: str, store: EventStore) -> str:
    """Return a clause on the events of a history."""
    counts = store.counts
    reasons = [f"{counts.incomplete:,} without a user, a time or an id"] if counts.incomplete else []
    reasons += [f"{counts.negative:,} whose label is not 1"] if counts.negative else []
    rest = f" ({' and '.join(reasons)} left out)" if reasons else ""
    return f", {counts.events:,} events of {count(counts.users, 'user')} in {name}{rest}"


def _without_history(contents: ParquetScan) -> Iterator[str]:
    """Yield a sentence for each history that most training samples have nothing of, by some of their row groups."""
    data = GroupedRows(contents.filesystem, contents.groups)
    trained = TrainingRows(data, contents.selector, contents.split_rows.train)
    trained = trained.some(-(-trained.total // _READ_ROWS))
    for name, store in contents.histories.stores.items():
        history = contents.settled.histories[name]
        read = trained.read([history.user, history.time])
        spans = (store.spans(history, group, 0, *rows)[0] for group, *rows in read)
        if (share := _empty_share(each[:, 1] - each[:, 0] for each in spans)) > 0.5:
            yield (
                f"{_percent(share)} of the training samples have no earlier event in history {name}; if that is "
                f"wrong, see that columns {history.user} and {history.time} mean the same in events and samples"
            )


def _without_elements(contents: ParquetScan) -> Iterator[str]:
    """Yield a sentence for each sequence of a column that most training samples have nothing of, by some groups."""
    data = GroupedRows(contents.filesystem, contents.groups)
    trained = TrainingRows(data, contents.selector, contents.split_rows.train)
    trained = trained.some(-(-trained.total // _READ_LISTS))
    for feature in contents.settled.sparse:
        name = feature.column_name
        has_lists = feature.makes_lists or name in contents.lists
        if feature.pooling != "none" or not has_lists or contents.settled.history_of(feature) is not None:
            continue
        with suppress(DataError):  # a value that is no id: training reports it, or leaves its row out
            lists = (
                decode_ids(table.column(name), feature, True, group, chosen, Counter())
                for group, table, chosen in trained.read([name])
            )
            if (share := _empty_share(np.diff(each.offsets) for each in lists if each.offsets is not None)) > 0.5:
                yield f"{_percent(share)} of the training samples have an empty list of {feature.name} (column {name})"


def _empty_share(lengths: Iterable[NDArray[np.int64]]) -> float:
    """Return the fraction of lists, of these lengths, that are empty."""
    rows = empty = 0
    for each in lengths:
        rows, empty = rows + each.size, empty + int(np.count_nonzero(each == 0))
    return empty / max(rows, 1)


def _far_vectors(contents: ParquetScan) -> Iterator[str]:
    """Yield a sentence on lists of numbers that no transform brings near 1."""
    if contents.far_vectors:
        yield (
            f"dense columns of lists with numbers far from 1, which networks learn badly from: "
            f"{', '.join(contents.far_vectors)}; divide them by their scale when you prepare the data"
        )


def _single_values(contents: ParquetScan) -> Iterator[str]:
    """Yield a sentence for each feature that is declared as one of lists, and whose column has none."""
    for feature in contents.settled.sparse:
        key = f"pooling: {feature.pooling}" if feature.pooling != "sum" else "max_length"
        is_declared = feature.pooling != "sum" or feature.max_length is not None
        if is_declared and not feature.makes_lists and feature.column_name not in contents.lists:
            yield (
                f"sparse feature {feature.name} has {key}, and its column has one value per row, not lists: if its "
                f"texts hold several ids, give what divides them, as in {{name: {feature.name}, separator: '|'}}; else "
                f"leave out {key}"
            )


def _lone_tables(contents: ParquetScan) -> Iterator[str]:
    """Yield a sentence for each feature that names a table which it reads alone, almost as another one is called."""
    names = [feature.table_name for feature in contents.settled.sparse]
    for feature in contents.settled.sparse:
        others = {name for name in names if name != feature.table_name}
        is_alone = feature.table not in (None, feature.name) and names.count(feature.table_name) == 1
        if is_alone and (near := get_close_matches(feature.table_name, others, 1)):
            yield (
                f"table {feature.table_name} is read by sparse feature {feature.name} alone; if it was to share the "
                f"rows of {near[0]}, set table: {near[0]}"
            )


def _size(nbytes: int) -> str:
    size, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def _null_shares(nulls: Counter[str], rows: int) -> str | None:
    """Return a clause with the columns that have most nulls, or None without nulls."""
    some = [(name, count) for name, count in nulls.most_common() if count]
    if not some:
        return None
    shown = ", ".join(f"{name} {_percent(count / rows)}" for name, count in some[:_SHOWN_NULLS])
    more = len(some) - _SHOWN_NULLS
    return f"nulls in {shown}" + (f" and {count(more, 'more column')}" if more > 0 else "")


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%" if share >= 0.0001 else "below 0.01%"


def sorted_labels(
    dataset: ParquetDataset, groups: Sequence[RowGroup], ranges: Sequence[Ranges], train_rows: Sequence[int]
) -> Iterator[str]:
    """Yield a sentence for each label with one value in most row groups, and others in the data.

    `train_rows` has the training rows of each row group. Rows that all fit into one block are mixed completely, so
    their order does not matter, and no sentence is due; without shuffle it always matters.
    """
    size = block_size(dataset, groups, train_rows)
    if dataset.shuffle and sum(train_rows) <= size.rows:
        return
    for label in dataset.label_names:
        known = [
            (group.constants[label].as_py(),) * 2 if label in group.constants else ends[label]
            for group, ends, rows in zip(groups, ranges, train_rows, strict=True)
            if rows >= LEAST_ROWS and (label in ends or label in group.constants)
        ]
        if _is_sorted(known, sum(train_rows)):
            constant = sum(least == most for least, most in known)
            remedy = (
                f"Persia mixes about {size.rows:,} rows at a time, from all parts of the files. If a training on them "
                "is unstable, write the data in a random order, or in smaller row groups"
                if dataset.shuffle
                else "They train in this order: set dataset.shuffle=true, or write the data in a random order"
            )
            yield (
                f"{constant:,} of {len(known):,} row groups have one value of label {label}: the rows are sorted by "
                f"it, or by a column that decides it. {remedy}"
            )


def _is_sorted(known: Sequence[tuple[Any, Any]], rows: int) -> bool:
    """Return True if most row groups have one value, and not since the other value is rare.

    In a random order a rare value is in most of the large row groups, and never fills a row group.
    """
    values = {least for least, most in known if least == most}
    constant = sum(least == most for least, most in known)
    is_constant = len({end for ends in known for end in ends}) < 2
    return 2 * constant > len(known) > 1 and not is_constant and (len(values) > 1 or rows >= RARE_ROWS * len(known))
