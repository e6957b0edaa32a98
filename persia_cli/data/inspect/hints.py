"""Hints from the values of a column: times, numbers of rows, texts of several ids, padding."""

from collections.abc import Callable, Sequence
from typing import Any

from persia_cli.data.inspect.profile import Hints, Kind, NumberFigures, TimeHint
from persia_cli.data.inspect.times import formats_of_numbers, formats_of_texts, hint_of
from persia_cli.data.read.csv_files import NUMBER

FILLERS = ("0", "-1", "-999", "", "na", "n/a", "nan", "null", "none", "nil", "-", "?", ".", "missing", "unknown", "pad",
           "<pad>", "[pad]", "\\n")  # fmt: skip
"""Values, in lower case, that often stand for none."""
LEAST_FILLED = 0.05
"""Part of all values from which on one of FILLERS is reported."""
_MOST_WORDS = 5
"""Different texts, at most, among numbers."""
_MOSTLY, _HALF = 0.95, 0.5
"""Part of the texts that are numbers where the others may be any, and where all others are FILLERS."""
SEPARATORS = {**{each: f"contains(v, '{each}')" for each in "|;,"}, " ": r"regexp_full_match(v, '\d+( +\d+)+')"}
"""Separators of ids, each with SQL for a text that has it; blanks count between numbers alone."""
_LEAST_DIVIDED = 0.1
"""Part of the texts that hold a separator, where it divides ids."""
_WRITTEN = r"\s*[+-]?[$€£¥]?\s*[+-]?\d*([.,]\d{3})*([.,]\d+)?\s*[%$€£¥]?\s*"
"""Numbers as people write them: 1,234.5 or 1.234,5 or $12 or 7.5 %."""

Run = Callable[[str], Sequence[tuple[Any, ...]]]
"""Runs the expressions of a SELECT over the texts `v` of the sampled rows."""


def numeric_hints(name: str, kind: Kind, numbers: NumberFigures, count: int, distinct: int | None, run: Run) -> Hints:
    """Return the hints of `count` finite numbers; `distinct` is None if it is not known, and more than a few."""
    if numbers.least is None or numbers.greatest is None:
        return Hints()
    ends = (numbers.least, numbers.greatest) if kind == "number" else (int(numbers.least), int(numbers.greatest))
    formats = formats_of_numbers(name, ends, kind == "integer") if distinct is None or distinct > 2 else []
    has_no_gaps = numbers.is_whole and ends[1] - ends[0] + 1 == count and (distinct is None or distinct == count)
    return Hints(time=_time(run, formats), numbers_rows=count > 2 and has_no_gaps)


def text_hints(run: Run) -> Hints:
    """Return the hints of a column of text."""
    counts = ", ".join(f"count(*) FILTER ({sql})" for sql in SEPARATORS.values())
    is_number = f"regexp_matches(v, '{NUMBER}')"
    first, last, is_written, size, numbers, *divided = run(
        "min(v), max(v), "
        f"bool_and(regexp_full_match(v, '{_WRITTEN}')) AND bool_or(regexp_matches(v, '[,%$€£¥]')), count(*), "
        f"count(*) FILTER ({is_number}), {counts}"
    )[0]
    time = _time(run, formats_of_texts((first, last))) if size else None
    if time is not None or is_written:
        return Hints(time=time, are_written=bool(is_written) and time is None)
    if size and _HALF * size <= numbers:
        words, has_fractions = run(
            f"list_sort(list(DISTINCT trim(v, ' \t')) FILTER (NOT {is_number}))[:{_MOST_WORDS + 1}], "
            f"bool_or({is_number} AND contains(v, '.'))"
        )[0]
        is_mostly = numbers >= _MOSTLY * size or are_fillers(words or ())
        if len(words or ()) <= _MOST_WORDS and is_mostly and (words or has_fractions):
            return Hints(are_numbers=True, words=tuple(words or ()))
    for separator, number in zip(SEPARATORS, divided, strict=True):
        if size and number >= _LEAST_DIVIDED * size and _divides(run, separator):
            return Hints(separator=separator)
    return Hints()


def _time(run: Run, formats: Sequence[str | None]) -> TimeHint | None:
    return hint_of([value for (value,) in run("v")], formats) if formats else None


def are_fillers(words: Sequence[str]) -> bool:
    """Return True if there are texts, and all of them often stand for none."""
    return bool(words) and all(word.lower() in FILLERS for word in words)


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
