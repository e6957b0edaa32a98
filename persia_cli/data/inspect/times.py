"""Columns of times: the format that all their values fit, the features made of them, and whether they split rows."""

import re
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.config.schema.features import TimePart
from persia_cli.config.schema.time_format import UNITS
from persia_cli.data.inspect.profile import TimeHint
from persia_cli.data.read.time_texts import example_of, pattern_of
from persia_cli.data.read.times import NotATimeError, from_format, microseconds, part_of

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


def hint_of(values: Sequence[Any], formats: Sequence[str | None]) -> TimeHint | None:
    """Return what is known of times from a sample, in the first of the formats that all fit; None if there is none."""
    fitting = {form: times for form in formats if (times := _times(values, form)) is not None}
    if not values or not fitting:
        return None
    form, times = next(iter(fitting.items()))
    return figures_of(times, form, tuple(str(each) for each in fitting if each != form))


def figures_of(times: NDArray[np.int64], form: str | None = None, others: tuple[str, ...] = ()) -> TimeHint:
    """Return what is known of sampled times in microseconds."""
    least: dict[TimePart, int] = {"hour": 2 * _DAY, "weekday": 14 * _DAY}
    span = times.max() - times.min()
    if (times == times.astype("M8[us]").astype("M8[M]").astype("M8[us]").astype(np.int64)).all():
        del least["weekday"]  # of the first days of months
    parts = [part for part, length in least.items() if span >= length and np.ptp(part_of(times, part))]
    return TimeHint(form, others, tuple(parts), _divides(np.sort(times)))


def _divides(times: NDArray[np.int64]) -> bool:
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
    if is_plain and {len(str(each)) for each in values} != {len(example_of(str(form)))}:
        return None
    try:
        times: NDArray[np.int64] = microseconds(from_format(pa.array(values), form)).to_numpy(zero_copy_only=False)
    except (NotATimeError, TypeError, OverflowError, pa.ArrowInvalid):
        return None
    low, high = _NARROW if is_plain or form in UNITS else _WIDE
    return times if ((times >= low) & (times < high)).all() else None
