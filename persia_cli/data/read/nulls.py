"""The shares of nulls in the features' columns, by the footers of Parquet files."""

from collections import Counter
from collections.abc import Collection
from typing import Any

from persia_cli.data.read.row_groups import statistics_of

_SHOWN = 5


def column_nulls(metadata: Any, names: Collection[str]) -> Counter[str]:
    """Return the nulls of each of these columns, where a Parquet file's metadata counts them; lists are not counted."""
    found: Counter[str] = Counter()
    for group in range(metadata.num_row_groups):
        for name, known in statistics_of(metadata.row_group(group), names).items():
            if known is not None and known.has_null_count:
                found[name] += known.null_count
    return found


def null_shares(nulls: Counter[str], rows: int) -> str | None:
    """Return a clause with the columns that have most nulls, or None without nulls."""
    some = [(name, count) for name, count in nulls.most_common() if count]
    if not some:
        return None
    shown = ", ".join(f"{name} {_percent(count / rows)}" for name, count in some[:_SHOWN])
    more = len(some) - _SHOWN
    return f"nulls in {shown}" + (f" and {more} more column{'s' if more > 1 else ''}" if more > 0 else "")


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%" if share >= 0.0001 else "below 0.01%"
