"""The magnitude of dense values, from the statistics of Parquet files, and warnings about values too large to learn."""

import math
from collections.abc import Collection, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

LARGE = 1000.0
"""A dense value above this dominates the others, and its gradients overshoot."""


def column_scales(metadata: Any, names: Collection[str]) -> dict[str, float]:
    """Return the greatest absolute value of each numeric column, where a Parquet file's metadata holds it."""
    scales: dict[str, float] = {}
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        for number in range(rows.num_columns):
            column = rows.column(number)
            statistics = column.statistics
            if column.path_in_schema in names and statistics is not None and statistics.has_min_max:
                ends = [_number(end) for end in (statistics.min, statistics.max)]
                if all(map(math.isfinite, ends)):
                    scale = max(map(abs, ends))
                    scales[column.path_in_schema] = max(scale, scales.get(column.path_in_schema, 0.0))
    return scales


def _number(value: object) -> float:
    """Return a value as a dense feature reads it: dates and timestamps as days since 1970; NaN for other types."""
    if isinstance(value, date):
        day = value.date() if isinstance(value, datetime) else value
        return float((day - date(1970, 1, 1)).days)
    return float(value) if isinstance(value, int | float | Decimal) else math.nan


def scale_warnings(scales: Mapping[str, float]) -> tuple[str, ...]:
    """Return a sentence for each dense feature whose values are too large to train on as they are."""
    return tuple(
        f"dense feature {name} has values up to {scale:.3g}, and networks learn badly from numbers far from 1: declare "
        f"{{name: {name}, transform: log1p}} or {{name: {name}, transform: standardise}} in dataset.dense"
        for name, scale in scales.items()
        if scale > LARGE
    )
