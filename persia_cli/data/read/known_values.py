"""Wrong values that the footers of Parquet files show, so that they are reported before a job starts."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature, Label
from persia_cli.config.schema.split import EvalSplit, PredictSplit
from persia_cli.control.position import SplitName
from persia_cli.data.read.arrow_types import class_of, plain_type
from persia_cli.data.read.columns import label_columns
from persia_cli.data.read.decode import decode_dense, decode_labels, decode_weights
from persia_cli.data.read.row_groups import GroupedRows, RowGroupReader
from persia_cli.data.read.splits import Selector
from persia_cli.errors import DataError

_SHOWN = 10
"""Values that are named of a label's column."""
SPLITS: tuple[SplitName, ...] = ("train", "eval")


def suspects(dataset: ParquetDataset, statistics: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of labels, weights and dense features that, by the footer, hold what reading would refuse.

    They are nulls, and negative weights, of rows that may be in neither split. `statistics` are a row group's.
    """
    filled = {feature.name for feature in dataset.dense_features if feature.times_of is None}
    filled = filled if dataset.fill is None else set()
    filled |= set() if dataset.has_optional_labels else {*label_columns(dataset)}
    columns = []
    for name, known in statistics.items():
        is_low = name == dataset.weight and known.has_min_max and isinstance(known.min, int | float) and known.min < 0
        if is_low or (name in filled | {dataset.weight} and known.has_null_count and known.null_count):
            columns.append(name)
    return tuple(columns)


def refuse_wrong(
    dataset: ParquetDataset, rows: GroupedRows, selector: Selector, suspected: Sequence[Collection[str]]
) -> None:
    """Raise DataError for the first wrong value in the `suspected` columns of each row group, if a split has its row.

    Only these columns are read, and the one that makes the split.
    """
    labels = {label.name: label for label in dataset.label_rules}
    dense = {feature.name: _plain(feature) for feature in dataset.dense_features} if dataset.fill is None else {}
    with RowGroupReader(rows.filesystem) as reader:
        for group, names in zip(rows.groups, suspected, strict=True):
            if not names:
                continue
            table = reader.read(group, list(dict.fromkeys([*names, *selector.columns])))
            for split in SPLITS:
                of_split = selector.rows(split, group.first_row, table)
                for name in names:
                    if name == dataset.weight:
                        decode_weights(table.column(name), name, group, of_split)
                    elif name in labels:
                        decode_labels(table.column(name), labels[name], group, of_split, "identity")
                    if name in dense:
                        decode_dense(table.column(name), dense[name], group, of_split, None, Counter())


def _plain(feature: DenseFeature) -> DenseFeature:
    """Return a feature without its transform, whose statistics may not be known yet."""
    return feature.model_copy(update={"transform": None, "mean": None, "deviation": None, "bins": None})


def refuse_absent(dataset: ParquetDataset, rows: GroupedRows) -> None:
    """Raise DataError for a label that is positive in no row, for none has one of its values.

    Row groups are read up to the first that has one, and only where the samples are to be trained on.
    """
    if not isinstance(dataset.split, PredictSplit | EvalSplit):
        for label in (label for label in dataset.label_rules if label.positives):
            _refuse_absent(label, rows)


def _refuse_absent(label: Label, rows: GroupedRows) -> None:
    there: dict[str, None] = {}
    for _, table in rows.read([label.name]):
        column = table.column(label.name)
        is_text = class_of(column.type) == "text"
        distinct = pc.unique(column.cast(plain_type(column.type))).drop_null()
        wanted = {str(value) if is_text else value for value in label.positives}
        values = [
            value.decode(errors="replace") if isinstance(value, bytes) else value for value in distinct.to_pylist()
        ]
        if not wanted.isdisjoint(values):
            return
        shown = (f"{value:.16g}" if isinstance(value, float) else str(value) for value in values[: _SHOWN + 1])
        there |= dict.fromkeys(shown)
    named = [*there][:_SHOWN] + (["…"] if len(there) > _SHOWN else [])
    never = " or ".join(map(str, label.positives))
    raise DataError(
        f"dataset.labels: column {label.name} is never {never}, but {', '.join(named) or 'always null'}; correct "
        f"positive of label {label.name}"
    )
