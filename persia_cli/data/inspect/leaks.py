"""Columns that give the label away: what is known only after it, and copies of it.

Each column alone is measured on the sampled rows. A leak has an AUC above .99 that is no chance of few rows, or rows
with, or without, a value that nearly all have the class of at most half of all rows. An AUC above .95, or a class of up
to 80 %, is a doubt.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.features import Label
from persia_cli.data.inspect.alone import LEAST_ROWS, auc_alone, is_leak, is_suspicious, rarest_by_nulls
from persia_cli.data.inspect.labels import positive_sql
from persia_cli.data.inspect.profile import ColumnProfile, DatasetProfile
from persia_cli.data.inspect.queries import Queries

AT_ONCE = 32
"""Columns that one query reads."""


@dataclass(frozen=True, slots=True)
class Leak:
    """A column that gives the label away, or may."""

    auc: float
    by_nulls: bool
    """True if the rows without a value, or those with one, have nearly all the same label."""
    is_sure: bool

    @property
    def text(self) -> str:
        """The finding, and what it probably means."""
        finding = "its nulls follow the label" if self.by_nulls else f"alone it gives AUC {self.auc:.3f}"
        if self.is_sure:
            return f"{finding}, so it is probably known only after the label, or made of it"
        return f"{finding}: use it only if it is known before the label"


def leaks_of(queries: Queries, profile: DatasetProfile, label: Label, names: Sequence[str]) -> dict[str, Leak]:
    """Return those of the columns `names` that stand out, in bounded memory."""
    leaks = {}
    for start in range(0, len(names), AT_ONCE):
        part = names[start : start + AT_ONCE]
        columns = {"y": label.name} | {f"c{number}": name for number, name in enumerate(part)}
        measured = [sql for number, name in enumerate(part) for sql in _measured(profile.columns[name], number)]
        is_positive = positive_sql(label, profile.columns[label.name].kind == "text")
        queries.select(columns, [f"{is_positive} AS positive", "hash(row) % 2 = 0 AS half", *measured])
        rows = queries.arrays("SELECT * FROM sample")
        positive = rows["positive"]
        if min(positive.sum(), (~positive).sum()) < LEAST_ROWS:
            return {}
        for number, name in enumerate(part):
            keys, is_null = rows[f"key{number}"], rows[f"null{number}"]
            auc = auc_alone(keys, rows.get(f"number{number}"), positive, rows["half"])
            if (leak := _judged(auc, is_null, positive)) is not None:
                leaks[name] = leak
    return leaks


def _judged(auc: float, is_null: NDArray[np.bool_], positive: NDArray[np.bool_]) -> Leak | None:
    share, classes = rarest_by_nulls(is_null, positive), (int(positive.sum()), int((~positive).sum()))
    if share <= 0.5 or is_leak(auc, *classes):
        return Leak(auc, share <= 0.5, is_sure=True)
    if share <= 0.8 or is_suspicious(auc, *classes):
        return Leak(auc, share <= 0.8, is_sure=False)
    return None


def _measured(column: ColumnProfile, number: int) -> Iterator[str]:
    """Yield SQL for what a column's values are compared by: a key, a number where they have one, and nulls."""
    sql = f"c{number}"
    by_kind = {
        "integer": f"finite({sql})",
        "number": f"finite({sql})",
        "time": f"epoch({sql}::TIMESTAMP)",
        "list": f"len({sql})",
    }
    value = by_kind.get(column.kind)
    if column.type in ("string", "large_string"):
        value = f"finite(try_cast({sql} AS DOUBLE))"  # 8e4321 is an infinite number
    yield f"{sql} IS NULL AS null{number}"
    yield f"hash({sql if column.kind in (*by_kind, 'text') else f'{sql} IS NULL'}) AS key{number}"
    if value is not None:
        yield f"coalesce({value}::DOUBLE, 'nan'::DOUBLE) AS number{number}"
