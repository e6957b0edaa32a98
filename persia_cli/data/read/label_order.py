"""Data sorted by a label, seen in the footers of Parquet files: row groups in which the label has one value."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.read.order import block_size
from persia_cli.data.read.row_groups import RowGroup

LEAST_ROWS = 16
"""Rows from which on a row group counts: in fewer rows a label often has one value by chance."""
RARE_ROWS = 10_000
"""Mean rows of row groups that show data as sorted even if only one value fills whole row groups."""

Ranges = Mapping[str, tuple[Any, Any]]
"""The least and the greatest value of each label in a row group, where they are known."""


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
