"""The values of labels in a split, as far as a training must know them before its first step, and their means."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import GeneratedDataset, ParquetDataset
from persia_cli.config.schema.features import Label
from persia_cli.control.position import SplitName
from persia_cli.data.read.bad_rows import bad_rows_allowed, leaving_out
from persia_cli.data.read.decode import decode_labels, decode_weights
from persia_cli.data.read.masked_labels import fill_chain, without_unknown
from persia_cli.data.read.row_groups import RowGroupReader
from persia_cli.data.read.scan import ParquetScan, Ranges
from persia_cli.data.read.slices import RowPiece
from persia_cli.data.read.source import open_source
from persia_cli.metric import Link


@dataclass(frozen=True, slots=True)
class LabelEnds:
    """The labels of a split's rows that have weight; reading ended as soon as each label had two values."""

    has_weight: bool
    """True if a row has a weight above 0."""
    ends: Mapping[str, tuple[float, float] | None]
    """Two different values of each label that has two, else its only value twice; None of a label without a value."""


EVALUATION_ROWS = 2**24
"""Rows of an evaluation whose labels and weights are all read: a wrong one would end a job after its training."""


def label_ends(contents: ParquetScan, split: SplitName, links: Mapping[str, Link], is_chain: bool = False) -> LabelEnds:
    """Read labels and weights of a split that has rows, in row groups in random order, until each label has two values.

    Row groups whose footers show a wrong label come first, and are all read. Of evaluations at least `EVALUATION_ROWS`
    are read, if there are so many. Rows without weight do not count, nor
    labels that are not known; in a chain a label is 0 where the one before it is. Raises DataError for a value that
    training would refuse.
    """
    dataset = contents.settled
    low, high = (np.full(len(dataset.labels), end) for end in (np.inf, -np.inf))
    columns = dict.fromkeys([*dataset.label_names, *filter(None, [dataset.weight]), *contents.selector.columns])
    has_weight, rows_of = False, contents.split_rows.of(split)
    unread = EVALUATION_ROWS if split == "eval" else 0

    def link_of(label: Label) -> Link:
        return links.get(label.name, "logistic")

    def decode(piece: RowPiece) -> NDArray[np.float32]:
        table, rows = piece.table, piece.rows
        labels = np.stack(
            [
                decode_labels(table.column(label.name), label, piece, rows, link_of(label), dataset.has_optional_labels)
                for label in dataset.label_rules
            ],
            axis=1,
        )
        if is_chain:
            fill_chain(labels)
        if dataset.weight is not None:
            labels = labels[decode_weights(table.column(dataset.weight), dataset.weight, piece, rows) > 0.0]
        return labels

    # Data are often sorted by label: groups in random order soon show both values.
    order = np.random.default_rng(0).permutation(np.flatnonzero(rows_of)).tolist()
    suspects = {number for number in order if _has_wrong_label(dataset, contents.label_ranges[number], links)}
    with RowGroupReader(contents.filesystem) as reader:
        for done, number in enumerate(sorted(order, key=lambda number: number not in suspects), 1):
            group = contents.groups[number]
            table = reader.read(group, list(columns))
            piece = RowPiece(group, 0, table, contents.selector.rows(split, group.first_row, table))
            labels, _, _ = leaving_out(piece, bad_rows_allowed(dataset), decode)
            has_weight |= bool(len(labels))
            low = np.fmin(low, np.fmin.reduce(labels, axis=0, initial=np.inf))
            high = np.fmax(high, np.fmax.reduce(labels, axis=0, initial=-np.inf))
            unread -= rows_of[number]
            if (low < high).all() and unread <= 0 and done >= len(suspects):
                break
    ends = zip(dataset.label_names, low.tolist(), high.tolist(), strict=True)
    return LabelEnds(has_weight, {name: (a, b) if a <= b else None for name, a, b in ends})


def _has_wrong_label(dataset: ParquetDataset, ranges: Ranges, links: Mapping[str, Link]) -> bool:
    """Return True if a row group's footer shows a label beyond the values that what predicts it can learn."""
    for label in dataset.label_rules:
        least, most = ranges.get(label.name, (0, 0))
        if label.positive is not None or label.at_least is not None or not isinstance(least, int | float):
            continue
        link = links.get(label.name, "logistic")
        if (link != "identity" and least < 0) or (link == "logistic" and most > 1):
            return True
    return False


_ROWS = 1 << 17
"""Rows that are read at a time."""


def label_means(
    dataset: ParquetDataset | GeneratedDataset, seed: int, links: Mapping[str, Link], is_chain: bool = False
) -> tuple[float | None, ...]:
    """Return the mean of each label over the samples that have it, by their weights; None without weight.

    In a chain a label is 0 where the one before it is. It reads the columns of labels and weights alone, of all
    training rows, in the order of the files. `seed` and
    `links` are as in `open_source`. Raises DataError for labels that cannot be read.
    """
    if isinstance(dataset, ParquetDataset):
        dataset = dataset.model_copy(update={"dense": (), "sparse": (), "group_by": None, "shuffle": False})
    source = open_source(dataset, "train", seed, links)
    try:
        sums, totals = (np.zeros(len(dataset.label_names)) for _ in range(2))
        for start in range(0, source.rows, _ROWS):
            batch = source.read(0, start, min(start + _ROWS, source.rows))
            if is_chain:
                fill_chain(batch.labels)
            ones = np.ones(batch.size) if batch.weights is None else batch.weights.astype(np.float64)
            labels, weights = without_unknown(batch.labels.astype(np.float64), ones)
            assert weights is not None
            sums += weights @ labels if weights.ndim == 1 else (weights * labels).sum(0)
            totals += weights.sum(0)
    finally:
        source.close()
    return tuple(float(s / total) if total else None for s, total in zip(sums, totals, strict=True))
