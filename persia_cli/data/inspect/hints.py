"""Hints from the values of a column: times, numbers of rows, texts of several ids, padding."""

import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.config.schema.features import TimePart
from persia_cli.config.schema.time_format import UNITS
from persia_cli.data.inspect.profile import Hints, Kind, NumberStatistics, TimeHint
from persia_cli.data.read.arrow_types import UnusableValueError
from persia_cli.data.read.csv_files import NUMBER
from persia_cli.data.read.times import example_of, from_format, microseconds, part_of, pattern_of

_DATES = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%m/%d/%y",
    "%d/%m/%y", "%d.%m.%y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d/%b/%Y", "%b %d, %Y", "%b %d %Y", "%a, %d %b %Y",
    "%b-%Y", "%b %Y", "%Y-%m", "%m/%Y",
)  # fmt: skip
"""Usual forms of dates, of two that a value fits the likelier first."""
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", "T%H:%M:%S", ":%H:%M:%S")
_DIGITS = ("%Y%m%d", "%Y%m", "%y%m%d", "%y%m%d%H", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S")
"""Forms without separators, which whole numbers may have."""
_CALLED = re.compile(r"(time|date|stamp|epoch|seconds|(^|_)(ts|at|when|created|updated))$|unix|(?-i:[a-z]At$)", re.I)
"""Names of columns whose numbers may be counted since 1970."""
_DAY = 86_400_000_000
_WIDE, _NARROW = ((np.array(ends, "M8[us]").astype(np.int64)) for ends in (("1900", "2100"), ("1990", "2035")))
"""The times of texts, and those of digits alone."""
_PART, _PARTS = 0.1, (0.05, 0.2)
"""Part of the rows that evaluates, and another that tests; the least and the greatest that equal times may make."""


def formats_of_texts(ends: Sequence[str]) -> list[str | None]:
    """Return the formats that the first and the last text of a column fit, the likeliest first; None is ISO 8601."""
    if not any(letter.isdigit() for letter in ends[0]):
        return []
    if _times(ends, None) is not None:
        return [None]
    first = ends[0].strip().upper()
    dates = [date for date in _DATES if re.match(pattern_of(date).removesuffix("$"), first)]
    whole = ["".join(parts) for parts in product(dates, _CLOCKS, ("", " %z", "%z"))]
    return [form for form in (*whole, *_DIGITS) if re.match(pattern_of(form), first) and _times(ends, form) is not None]


def formats_of_numbers(name: str, ends: Sequence[float], is_integer: bool) -> list[str | None]:
    """Return the formats that the least and the greatest number of a column fit; only integers have digits alone."""
    units, digits = UNITS if _CALLED.search(name) else (), _DIGITS if is_integer else ()
    return [form for form in (*units, *digits) if _times(ends, form) is not None]


def time_hint_of(times: NDArray[np.int64], form: str | None = None, others: tuple[str, ...] = ()) -> TimeHint:
    """Return what is known of sampled times in microseconds."""
    least: dict[TimePart, int] = {"hour": 2 * _DAY, "weekday": 14 * _DAY}
    span = times.max() - times.min()
    if (times == times.astype("M8[us]").astype("M8[M]").astype("M8[us]").astype(np.int64)).all():
        del least["weekday"]  # of the first days of months
    parts = [part for part, length in least.items() if span >= length and np.ptp(part_of(times, part))]
    return TimeHint(form, others, tuple(parts), _splits_rows(np.sort(times)))


def _splits_rows(times: NDArray[np.int64]) -> bool:
    """Return True if the latest tenth of sorted times, and the tenth before it, differ from the rest."""
    rows = times.size
    first = np.flatnonzero(np.diff(times)) + 1
    if first.size < 2:
        return False
    tests = first[np.argmin(np.abs(first - (1.0 - _PART) * rows))]
    before = first[first < tests]
    if not before.size:
        return False
    evaluates = before[np.argmin(np.abs(before - (tests - _PART * rows)))]
    return all(_PARTS[0] * rows <= part <= _PARTS[1] * rows for part in (rows - tests, tests - evaluates))


def _times(values: Sequence[Any], form: str | None) -> NDArray[np.int64] | None:
    """Return values as microseconds, if all are times that are likely."""
    is_plain = form in _DIGITS
    if is_plain and {len(str(value)) for value in values} != {len(example_of(str(form)))}:
        return None
    try:
        times: NDArray[np.int64] = microseconds(from_format(pa.array(values), form)).to_numpy(zero_copy_only=False)
    except (UnusableValueError, TypeError, OverflowError, pa.ArrowInvalid):
        return None
    low, high = _NARROW if is_plain or form in UNITS else _WIDE
    return times if ((times >= low) & (times < high)).all() else None


FILLERS = ("0", "-1", "-999", "", "na", "n/a", "nan", "null", "none", "nil", "-", "?", ".", "missing", "unknown", "pad",
           "<pad>", "[pad]", "\\n")  # fmt: skip
"""Values, in lower case, that often stand for none."""
LEAST_FILLED = 0.05
"""Part of all values from which on one of FILLERS is reported."""
_MOST_WORDS = 5
"""Different texts, at most, among numbers."""
_MOSTLY, _HALF = 0.95, 0.5
"""Part of the texts that are numbers where the others may be any, and where all others are FILLERS."""
SEPARATORS = {
    **{separator: f"contains(v, '{separator}')" for separator in "|;,"},
    " ": r"regexp_full_match(v, '\d+( +\d+)+')",
}
"""Separators of ids, each with SQL for a text that has it; blanks count between numbers alone."""
_LEAST_DIVIDED = 0.1
"""Part of the texts that hold a separator, where it divides ids."""
_WRITTEN = r"\s*[+-]?[$€£¥]?\s*[+-]?\d*([.,]\d{3})*([.,]\d+)?\s*[%$€£¥]?\s*"
"""Numbers as people write them: 1,234.5 or 1.234,5 or $12 or 7.5 %."""

Run = Callable[[str], Sequence[tuple[Any, ...]]]
"""Runs the expressions of a SELECT over the texts `v` of the sampled rows."""


def numeric_hints(
    name: str, kind: Kind, numbers: NumberStatistics, count: int, distinct: int | None, run: Run
) -> Hints:
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
        markers, has_fractions = run(
            f"list_sort(list(DISTINCT trim(v, ' \t')) FILTER (NOT {is_number}))[:{_MOST_WORDS + 1}], "
            f"bool_or({is_number} AND contains(v, '.'))"
        )[0]
        is_mostly = numbers >= _MOSTLY * size or are_fillers(markers or ())
        if len(markers or ()) <= _MOST_WORDS and is_mostly and (markers or has_fractions):
            return Hints(are_numbers=True, words=tuple(markers or ()))
    for separator, number in zip(SEPARATORS, divided, strict=True):
        if size and number >= _LEAST_DIVIDED * size and _divides(run, separator):
            return Hints(separator=separator)
    return Hints()


def _time(run: Run, formats: Sequence[str | None]) -> TimeHint | None:
    """Return what is known of times from a sample, in the first of the formats that all fit; None if there is none."""
    values = [value for (value,) in run("v")] if formats else []
    fitting = {form: times for form in formats if values and (times := _times(values, form)) is not None}
    if not fitting:
        return None
    (form, times), *others = fitting.items()
    return time_hint_of(times, form, tuple(str(other) for other, _ in others))


def are_fillers(texts: Sequence[str]) -> bool:
    """Return True if there are texts, and all of them often stand for none."""
    return bool(texts) and all(word.lower() in FILLERS for word in texts)


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
