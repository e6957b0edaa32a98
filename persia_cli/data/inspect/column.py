"""The queries about the columns of files, and the statistics from their answers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from persia_cli.control.position import SplitName
from persia_cli.data.inspect.hints import filler_of, numeric_hints, text_hints, time_hint_of
from persia_cli.data.inspect.profile import ColumnProfile, Hints, Kind, LengthStatistics, NumberStatistics
from persia_cli.data.inspect.queries import Queries
from persia_cli.data.read.arrow_types import NUMBERS, class_of, is_list, is_text, plain_type

TOP = 5
"""Most frequent ids that are reported for a column."""
FEW = 1000
"""Distinct whole numbers up to which a column of floats may hold ids."""
AT_ONCE = 32
"""Columns that one query reads."""
Progress = Callable[[int, int], None]
"""Called with the rows read so far and in total; a row counts in parts while its columns are read one by one."""
_SPLITS: tuple[SplitName, SplitName] = ("train", "eval")

Statistics = dict[str, Any]
"""The statistics of some rows, as queries name them; empty if there are no rows."""


def profile_columns(
    queries: Queries, separators: Mapping[str, str], progress: Progress
) -> tuple[dict[SplitName, int], dict[str, ColumnProfile]]:
    """Return the rows of each split and a profile of each column, in bounded memory.

    `separators` has what divides the ids in the texts of columns, where that is known.
    """
    columns = [
        _Column(queries, name, f"c{number}", separators.get(name))
        for number, name in enumerate(queries.source.schema.names)
    ]
    progress(0, queries.total)
    totals = np.zeros(2, np.int64)
    profiles = {}
    for start in range(0, len(columns), AT_ONCE):
        part = columns[start : start + AT_ONCE]
        sampled = [column.sql for column in part if column.kind not in ("other", "vector")]
        queries.select({column.sql: column.name for column in part}, sampled)
        statistics: list[dict[int | None, Statistics]] = [{0: {}, 1: {}} for _ in part]
        for split_number, rows, *by_column in queries.run(
            f"SELECT split, count(*), {', '.join(column.statistics_sql for column in part)} FROM data "
            "GROUP BY GROUPING SETS ((split), ())"
        ):
            if split_number is not None:
                totals[split_number] = rows
            for parts, statistics_of_part in zip(statistics, by_column, strict=True):
                parts[split_number] = statistics_of_part
        for column, parts in zip(part, statistics, strict=True):
            profiles[column.name] = column.profile(parts, int(totals.sum()))
            progress(queries.total * len(profiles) // len(columns), queries.total)
    return dict(zip(_SPLITS, totals.tolist(), strict=True)), profiles


def distinct_together(queries: Queries, names: Mapping[str, str | None]) -> int:
    """Return the number of distinct ids of several columns, each with what divides the ids in its texts."""
    columns = [_Column(queries, name, f"c{number}", None) for number, name in enumerate(names)]
    queries.select({column.sql: column.name for column in columns}, [])
    for column, separator in zip(columns, names.values(), strict=True):
        if separator is not None:
            column.divide(separator)
    together = " UNION ALL ".join(f"SELECT v::VARCHAR AS v FROM {column.values('data')}" for column in columns)
    return int(queries.run(f"SELECT count(DISTINCT v) FROM ({together})")[0][0])


def kind_of(arrow_type: Any) -> Kind:
    """Return the kind of an Arrow type's values."""
    plain = plain_type(arrow_type)
    if pa.types.is_integer(plain):
        return "integer"
    if class_of(plain) in NUMBERS:
        return "number"
    if is_list(plain) and class_of(plain.value_type) in ("integer", "text"):
        return "list"
    if is_list(plain) and class_of(plain.value_type) in ("float", "decimal"):
        return "vector"
    if is_text(plain):
        return "text"
    return "time" if class_of(plain) in ("date", "timestamp") else "other"


class _Column:
    """A column, as SQL names it."""

    def __init__(self, queries: Queries, name: str, sql: str, separator: str | None) -> None:
        arrow_type = plain_type(queries.source.schema.field(name).type)
        element = plain_type(arrow_type.value_type) if is_list(arrow_type) else arrow_type
        self.name, self.sql, self.kind = name, sql, kind_of(arrow_type)
        self._queries, self._separator = queries, separator
        self._type = f"list<{element}>" if is_list(arrow_type) else str(arrow_type)
        self._element = pa.string() if class_of(element) == "text" and "binary" not in str(element) else element
        self._digits = {pa.float16(): 11, pa.float32(): 24}.get(element, 53)
        value = {"list": f"unnest({self.sql})", "number": f"finite({self.sql})"}.get(self.kind, self.sql)
        self._values = f"(SELECT split, v FROM (SELECT split, {value} AS v FROM {{}}) WHERE v IS NOT NULL)"

    def values(self, table: str) -> str:
        """Return SQL for the `split` and the value `v` of each id in a table."""
        return self._values.format(table)

    def divide(self, separator: str) -> None:
        """Take the entries of texts for the values from now on."""
        quoted = separator.replace("'", "''").replace("{", "{{").replace("}", "}}")
        entries = f"SELECT split, trim(unnest(string_split(v, '{quoted}')), ' \t') AS v FROM {self._values}"
        self._values = f"(SELECT split, v FROM ({entries}) WHERE v <> '')"

    @property
    def statistics_sql(self) -> str:
        """Return SQL for a struct of statistics."""
        expressions = {"filled": f"count({self.sql})", "count": f"count({self.sql})"}
        size = {"integer": f"finite({self.sql})", "number": f"finite({self.sql})", "list": f"len({self.sql})"}
        size["vector"] = size["list"]
        if (number := size.get(self.kind)) is not None:
            expressions |= {"least": f"min({number})", "greatest": f"max({number})", "total": f"sum({number})"}
        if self.kind == "list":
            bin_ = f"CASE WHEN {number} > 0 THEN 1 + floor(log2({number}))::INTEGER ELSE 0 END"
            expressions["count"] = f"coalesce(sum(list_count({self.sql})), 0)"
            expressions["bins"] = f"histogram({bin_}) FILTER ({self.sql} IS NOT NULL)"
        elif self.kind == "vector":
            whole = f"list_count({self.sql}) = len({self.sql}) AND isfinite(list_sum({self.sql}::DOUBLE[]))"
            expressions["not_finite"] = (
                f"count(*) FILTER ({self.sql} IS NOT NULL AND len({self.sql}) > 0 AND NOT ({whole}))"
            )
        elif number is not None:
            expressions["count"] = f"count({number})"
            expressions["is_binary"] = f"bool_and({number} IN (0, 1))"
            expressions["is_whole"] = f"bool_and(trunc({number}) = {number} AND abs({number}) < {2**self._digits})"
        return "{" + ", ".join(f"'{name}': {sql}" for name, sql in expressions.items()) + "}"

    def profile(self, parts: Mapping[int | None, Statistics], total: int) -> ColumnProfile:
        """Return the statistics of the column of `total` rows; `parts` has those of each split and of all."""
        every = parts[None]
        nulls = total - every["filled"]
        sample = self._sampled("v") if self.kind == "number" else None
        has_numbers = self.kind in ("number", "integer")
        numbers = _number_statistics(every, sample) if has_numbers else None
        hints = self._time_hints() if self.kind == "time" else self._text_hints(every)
        if (separator := self._separator or hints.separator) is not None and self._element == pa.string():
            self.divide(separator)
        ids = self._ids(every)
        is_compared = bool(ids and ids["eval"] and parts[0].get("filled"))  # both splits have ids
        top = () if ids is None else tuple((_text(id_), occurrences / ids["count"]) for id_, occurrences in ids["top"])
        if numbers is not None:
            distinct = None if ids is None else ids["ids"]
            hints = numeric_hints(self.name, self.kind, numbers, every["count"], distinct, self._sampled)
        return ColumnProfile(
            name=self.name,
            type=self._type,
            kind=self.kind,
            nulls=nulls,
            coverage=1.0 - nulls / total if total else 0.0,
            count=0 if ids is None else ids["count"],
            distinct=None if ids is None else ids["ids"],
            top=top,
            numbers=NumberStatistics(not_finite=every["not_finite"]) if self.kind == "vector" else numbers,
            lengths=_length_statistics(every) if self.kind in ("list", "vector") else None,
            means={
                name: parts[number]["total"] / parts[number]["count"]
                for number, name in enumerate(_SPLITS)
                if has_numbers and parts[number].get("count")
            },
            unseen_ids=ids["new_ids"] / ids["eval_ids"] if ids and is_compared else None,
            unseen_lookups=ids["new"] / ids["eval"] if ids and is_compared else None,
            hints=replace(hints, filler=filler_of(top)),
        )

    def _text_hints(self, every: Statistics) -> Hints:
        """Return what texts look like, but for a filler."""
        if self.kind != "text" or self._element != pa.string() or not every["count"]:
            return Hints()
        return text_hints(self._sampled)

    def _time_hints(self) -> Hints:
        """Return what times look like."""
        is_zoned = getattr(self._element, "tz", None) is not None
        times = self._sampled(f"epoch_us(v::{'TIMESTAMPTZ' if is_zoned else 'TIMESTAMP'})")  # of nanoseconds too
        return Hints(time=time_hint_of(np.array(times, np.int64)[:, 0])) if times else Hints()

    def _ids(self, every: Statistics) -> Statistics | None:
        """Count the ids; None for a column without ids, and for numbers with a fraction or too many whole ones."""
        if self.kind in ("time", "other", "vector"):
            return None
        if self.kind == "number" and (every["is_whole"] is False or self._sampled("count(DISTINCT v)")[0][0] > FEW):
            return None
        value = "v::BIGINT" if self.kind == "number" else "v"
        counts = f"SELECT {value} AS v, count(*) FILTER (split = 0) AS t, count(*) FILTER (split = 1) AS e"
        entries = "SELECT {'v': v, 't': t, 'e': e} AS entry FROM ids ORDER BY"
        [(counts_by_name, top)] = self._queries.run(
            f"WITH ids AS MATERIALIZED ({counts} FROM {self.values(self._queries.whole)} GROUP BY ALL) "
            "SELECT (SELECT {'ids': count(*), 'train': coalesce(sum(t), 0), 'eval': coalesce(sum(e), 0), "
            "'eval_ids': count(*) FILTER (e > 0), 'new_ids': count(*) FILTER (t = 0), "
            "'new': coalesce(sum(e) FILTER (t = 0), 0)} FROM ids), "
            f"(SELECT list(entry) FROM ({entries} t + e DESC, v LIMIT {TOP}))"
        )
        if self.kind == "number" and counts_by_name["ids"] > FEW:
            return None
        counted = {name: int(number) for name, number in counts_by_name.items()}
        counted["count"] = counted["train"] + counted["eval"]
        return counted | {"top": [(entry["v"], entry["t"] + entry["e"]) for entry in top or []]}

    def _sampled(self, sql: str) -> list[tuple[Any, ...]]:
        """Return expressions of the values `v` of the sampled rows."""
        return self._queries.run(f"SELECT {sql} FROM {self.values('sample')}")


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _number_statistics(every: Statistics, sample: list[tuple[Any, ...]] | None) -> NumberStatistics:
    count, least, greatest = every["count"], every["least"], every["greatest"]
    if not count:
        return NumberStatistics(not_finite=every["filled"])
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = None if sample is None else float(np.std(np.array(sample, np.float64)))
    return NumberStatistics(
        least,
        greatest,
        every["total"] / count,
        deviation,
        every["filled"] - count,
        is_binary=least < greatest and every["is_binary"],
        is_whole=every["is_whole"],
    )


def _length_statistics(every: Statistics) -> LengthStatistics | None:
    if not every["filled"]:
        return None
    bins = every.get("bins") or {}
    counts = tuple(bins.get(length, 0) for length in range(max(bins, default=-1) + 1))
    return LengthStatistics(every["least"], every["greatest"], every["total"] / every["filled"], counts)
