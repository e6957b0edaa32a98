"""The queries about the columns of files, and the figures from their answers."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.control.position import SplitName
from persia_cli.data.arrow_types import class_of, is_list, is_number, is_text, plain_type
from persia_cli.inspect.drift import drift_of
from persia_cli.inspect.ids import IdCounts, count_ids
from persia_cli.inspect.profile import ColumnProfile, Kind, LengthFigures, NumberFigures
from persia_cli.inspect.queries import Queries

TOP = 5
"""Most frequent ids that are reported for a column."""
FEW = 1000
"""Distinct whole numbers up to which a column of floats may hold ids."""
AT_ONCE = 32
"""Columns that one query reads."""
_STEPS = 5
"""Queries about each column alone, as a rule."""
_SPLITS: tuple[SplitName, SplitName] = ("train", "eval")

Figures = dict[int | None, dict[str, Any]]
"""The figures of training rows (0), of evaluation rows (1), and of all (None); a split without rows has none."""


def profile_columns(queries: Queries) -> tuple[dict[SplitName, int], dict[str, ColumnProfile]]:
    """Return the rows of each split and the figures of each column, in memory that does not depend on the rows."""
    columns = [_Column(queries, name) for name in queries.source.schema.names]
    queries.steps = queries.done + 2 * -(-len(columns) // AT_ONCE) + _STEPS * len(columns)
    profiles = {}
    for start in range(0, len(columns), AT_ONCE):
        part = columns[start : start + AT_ONCE]
        queries.take_sample([column.sql for column in part if column.kind not in ("time", "other")])
        answers = queries.run(
            f"SELECT split, count(*), {', '.join(column.figures_sql for column in part)} FROM data "
            "GROUP BY GROUPING SETS ((split), ())"
        )
        rows = {split: total for split, total, *_ in answers}
        totals = np.array([rows.get(0, 0), rows.get(1, 0)])
        for place, column in enumerate(part):
            expected = queries.done + _STEPS
            profiles[column.name] = column.profile({answer[0]: answer[2 + place] for answer in answers}, totals)
            queries.done = expected
    queries.report()
    return dict(zip(_SPLITS, totals.tolist(), strict=True)), profiles


def kind_of(arrow_type: Any) -> Kind:
    """Return the kind of an Arrow type's values."""
    plain = plain_type(arrow_type)
    if pa.types.is_integer(plain):
        return "integer"
    if is_number(plain):
        return "number"
    if is_list(plain) and class_of(plain.value_type) in ("integer", "text"):
        return "list"
    if is_text(plain):
        return "text"
    return "time" if class_of(plain) in ("date", "timestamp") else "other"


class _Column:
    """A column, as SQL names it."""

    def __init__(self, queries: Queries, name: str) -> None:
        arrow_type = plain_type(queries.source.schema.field(name).type)
        element = plain_type(arrow_type.value_type) if is_list(arrow_type) else arrow_type
        self.name, self.sql, self.kind = name, queries.column(name), kind_of(arrow_type)
        self._queries = queries
        self._type = f"list<{element}>" if is_list(arrow_type) else str(arrow_type)
        self._is_text, self._is_unsigned = is_text(element), pa.types.is_unsigned_integer(element)
        value = {"list": f"unnest({self.sql})", "number": f"finite({self.sql})"}.get(self.kind, self.sql)
        self._values = f"(SELECT split, v FROM (SELECT split, {value} AS v FROM {{}}) WHERE v IS NOT NULL)"

    @property
    def figures_sql(self) -> str:
        """SQL for a struct of figures."""
        figures = {"filled": f"count({self.sql})", "count": f"count({self.sql})"}
        size = {"integer": f"finite({self.sql})", "number": f"finite({self.sql})", "list": f"len({self.sql})"}
        if (number := size.get(self.kind)) is not None:
            figures |= {"least": f"min({number})", "greatest": f"max({number})", "mean": f"avg({number})"}
        if self.kind == "list":
            bin_ = f"CASE WHEN {number} > 0 THEN 1 + floor(log2({number}))::INTEGER ELSE 0 END"
            figures["count"] = f"coalesce(sum(list_count({self.sql})), 0)"
            figures["bins"] = f"histogram({bin_}) FILTER ({self.sql} IS NOT NULL)"
        elif number is not None:
            figures["count"] = f"count({number})"
            figures["is_binary"] = f"bool_and({number} IN (0, 1))"
            figures["is_whole"] = f"bool_and(trunc({number}) = {number} AND abs({number}) < {2**53})"
        return "{" + ", ".join(f"'{name}': {sql}" for name, sql in figures.items()) + "}"

    def profile(self, figures: Figures, rows: NDArray[np.int64]) -> ColumnProfile:
        """Return the figures of the column; `rows` are those of each split."""
        nulls = rows - _of_both(figures, "filled")
        total = int(rows.sum())
        sample = self._sampled_numbers() if self.kind == "number" else None
        bins = _bins(figures) if self.kind == "list" else None
        ids = self._ids(figures)
        numbers = _number_figures(figures[None], sample) if self.kind in ("number", "integer") else None
        means = {name: figures[split]["mean"] for split, name in enumerate(_SPLITS) if numbers and split in figures}
        return ColumnProfile(
            name=self.name,
            type=self._type,
            kind=self.kind,
            nulls=int(nulls.sum()),
            coverage=1.0 - int(nulls.sum()) / total if total else 0.0,
            ids=ids,
            top=() if ids is None else self._top(ids),
            numbers=numbers,
            lengths=None if bins is None else _length_figures(figures[None], bins.sum(0)),
            means={name: mean for name, mean in means.items() if mean is not None},
            drift=drift_of(rows, nulls, ids, sample, bins),
        )

    def _ids(self, figures: Figures) -> IdCounts | None:
        """Count the ids; None for a column without ids, and for numbers with a fraction or too many whole ones."""
        if self.kind in ("time", "other") or (self.kind == "number" and not self._holds_few(figures)):
            return None
        id_ = "hash(v)" if self._is_text else "bits(v)"
        ids = count_ids(self._queries, self._values, id_, _of_both(figures, "count"))
        return None if self.kind == "number" and (not ids.is_exact or ids.distinct > FEW) else ids

    def _holds_few(self, figures: Figures) -> bool:
        """Return True if all numbers are whole, and those of the sampled rows few."""
        if figures[None]["is_whole"] is False:
            return False
        ((distinct,),) = self._run("SELECT count(DISTINCT v) FROM", "sample")
        return bool(distinct <= FEW)

    def _top(self, ids: IdCounts) -> tuple[tuple[str, float], ...]:
        """Return the most frequent ids, as text or as numbers with the sign of their type, and their parts of all."""
        places = ids.top(TOP, ids.counts.sum(1))
        numbers = ids.ids[places].tolist()
        shown = {number: str(number if self._is_unsigned or number < 2**63 else number - 2**64) for number in numbers}
        if self._is_text and numbers:
            condition = f"WHERE hash(v) IN ({', '.join(map(str, numbers))}) GROUP BY hash(v)"
            texts = dict(self._run("SELECT hash(v), any_value(v) FROM", "sample", condition))
            if len(texts) < len(numbers):
                texts = dict(self._run("SELECT hash(v), any_value(v) FROM", "data", condition))
            shown = {number: _text(value) for number, value in texts.items()}
        fractions = ids.counts[places].sum(1) / max(1, int(ids.totals.sum()))
        return tuple(zip((shown[number] for number in numbers), fractions.tolist(), strict=True))

    def _sampled_numbers(self) -> list[NDArray[np.float64]]:
        """Return the finite numbers of the sampled rows in each split."""
        found = np.array(self._run("SELECT split, v FROM", "sample"), np.float64).reshape(-1, 2)
        return [found[found[:, 0] == split, 1] for split in (0, 1)]

    def _run(self, select: str, table: str, condition: str = "") -> list[tuple[Any, ...]]:
        return self._queries.run(f"{select} {self._values.format(table)} {condition}")


def _of_both(figures: Figures, name: str) -> NDArray[np.int64]:
    """Return a figure of each split."""
    return np.array([figures[split][name] if split in figures else 0 for split in (0, 1)], np.int64)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _number_figures(figures: dict[str, Any], sample: list[NDArray[np.float64]] | None) -> NumberFigures:
    least, greatest, mean, not_finite = (figures[name] for name in ("least", "greatest", "mean", "filled"))
    if mean is None:
        return NumberFigures(None, None, None, None, not_finite, False)
    median = None if sample is None else float(np.median(np.concatenate(sample)))
    is_binary = least < greatest and figures["is_binary"]
    return NumberFigures(least, greatest, mean, median, not_finite - figures["count"], is_binary)


def _bins(figures: Figures) -> NDArray[np.int64]:
    """Return the number of lists of length 0, 1, 2 to 3, 4 to 7, and so on, in each split, [2, 64]."""
    bins = np.zeros((2, 64), np.int64)
    for split in figures.keys() - {None}:
        for number, lists in (figures[split]["bins"] or {}).items():
            bins[split, number] = lists
    return bins


def _length_figures(figures: dict[str, Any], bins: NDArray[np.int64]) -> LengthFigures | None:
    if not figures["filled"]:
        return None
    counts = tuple(np.trim_zeros(bins, "b").tolist())
    return LengthFigures(figures["least"], figures["greatest"], figures["mean"], counts)
