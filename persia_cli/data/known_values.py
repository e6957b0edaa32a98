"""Wrong values that the footers of Parquet files show, so that they are told before a job starts."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature
from persia_cli.control.position import SplitName
from persia_cli.data.decode import decode_dense, decode_weights
from persia_cli.data.row_groups import RowGroup, RowGroupReader
from persia_cli.data.splits import selected_rows

SPLITS: tuple[SplitName, ...] = ("train", "eval")


def suspects(dataset: ParquetDataset, row_group: Any) -> tuple[str, ...]:
    """Return the columns of weights and dense features that, by the footer, hold values that reading would refuse.

    They are nulls, and negative weights; `row_group` is a row group's metadata. Their rows may be in neither split.
    """
    dense = {feature.name for feature in dataset.dense_features} if dataset.fill is None else set()
    found = []
    for number in range(row_group.num_columns):
        column = row_group.column(number)
        name, known = column.path_in_schema, column.statistics
        if known is None or name not in (*dense, dataset.weight):
            continue
        is_low = name == dataset.weight and known.has_min_max and isinstance(known.min, int | float) and known.min < 0
        if is_low or (known.has_null_count and known.null_count):
            found.append(name)
    return tuple(found)


def refuse_wrong(
    dataset: ParquetDataset, filesystem: Any, groups: Sequence[RowGroup], suspected: Sequence[Collection[str]]
) -> None:
    """Raise DataError for the first wrong value in the `suspected` columns of each row group, if a split has its row.

    Only these columns are read, and the one that makes the split.
    """
    split_column = getattr(dataset.split, "column", None)
    with RowGroupReader(filesystem) as reader:
        for group, names in zip(groups, suspected, strict=True):
            if not names:
                continue
            table = reader.read(group, list(dict.fromkeys([*names, *([split_column] if split_column else [])])))
            for split in SPLITS:
                parts = table.column(split_column) if split_column else None
                rows = selected_rows(dataset.split, split, group, parts)
                for name in names:
                    if name == dataset.weight:
                        decode_weights(table.column(name), name, group, rows)
                    else:
                        decode_dense(table.column(name), DenseFeature(name=name), group, rows, None, Counter())
