"""Hints from the values of a column: times, numbers of rows, texts of several ids, padding."""

from collections.abc import Callable, Sequence
from typing import Any

from persia_cli.data.inspect.profile import Hints, NumberFigures

FILLERS = ("0", "-1", "-999", "", "na", "n/a", "nan", "null", "none", "nil", "-", "?", ".", "missing", "unknown", "pad",
           "<pad>", "[pad]", "\\n")  # fmt: skip
"""Values, in lower case, that often stand for none."""
LEAST_FILLED = 0.05
"""Part of all values from which on one of FILLERS is reported."""
SEPARATORS = {**{each: f"contains(v, '{each}')" for each in "|;,"}, " ": r"regexp_full_match(v, '\d+( +\d+)+')"}
"""Separators of ids, each with SQL for a text that has it; blanks count between numbers alone."""
_LEAST_DIVIDED = 0.1
"""Part of the texts that hold a separator, where it divides ids."""
_ISO = r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?\s*(Z|[+-]\d{2}:?\d{2})?)?"
_DECIMAL_COMMA = r"\s*[+-]?\d*(,\d+)?\s*"
_SECONDS = (946_684_800, 2_051_222_400)
"""2000-01-01 and 2035-01-01, in seconds since 1970."""
_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}

Run = Callable[[str], Sequence[tuple[Any, ...]]]
"""Runs the expressions of a SELECT over the texts `v` of the sampled rows."""


def numeric_hints(numbers: NumberFigures, count: int, distinct: int | None) -> Hints:
    """Return the hints of `count` finite numbers; `distinct` is None if it is not known, and more than a few."""
    if not numbers.is_whole or numbers.least is None or numbers.greatest is None:
        return Hints()
    time = None
    if distinct is None or distinct > 2:
        for unit, scale in _UNITS.items():
            if _SECONDS[0] * scale <= numbers.least and numbers.greatest <= _SECONDS[1] * scale:
                time = f"{unit} since 1970"
    has_no_gaps = numbers.greatest - numbers.least + 1 == count and (distinct is None or distinct == count)
    return Hints(time=time, numbers_rows=count > 2 and has_no_gaps)


def text_hints(run: Run) -> Hints:
    """Return the hints of a column of text."""
    counts = ", ".join(f"count(*) FILTER ({sql})" for sql in SEPARATORS.values())
    is_time, is_decimal, size, *divided = run(
        f"bool_and(regexp_full_match(v, '{_ISO}')), "
        f"bool_and(regexp_full_match(v, '{_DECIMAL_COMMA}')) AND bool_or(contains(v, ',')), count(*), {counts}"
    )[0]
    if is_time or is_decimal:
        return Hints(time="times as text" if is_time else None, has_decimal_comma=bool(is_decimal))
    for separator, number in zip(SEPARATORS, divided, strict=True):
        if size and number >= _LEAST_DIVIDED * size and _divides(run, separator):
            return Hints(separator=separator)
    return Hints()


def _divides(run: Run, separator: str) -> bool:
    """Return True if parts repeat more than whole texts do, and texts have several numbers of them."""
    parts = f"list_filter(list_transform(string_split(v, '{separator}'), lambda x: trim(x)), lambda x: x <> '')"
    texts, lengths, distinct = run(
        f"count(DISTINCT v), count(DISTINCT len({parts})), len(list_distinct(flatten(list(DISTINCT {parts}))))"
    )[0]
    if lengths < 2 or (separator == "," and lengths < 3):
        return False
    return bool(distinct < texts or separator == "|")


def filler_of(top: Sequence[tuple[str, float]]) -> tuple[str, float] | None:
    """Return the first of the most frequent values that may stand for none, with its part of all values."""
    return next(((value, part) for value, part in top if value.lower() in FILLERS and part >= LEAST_FILLED), None)
