"""Times that are written in a given format, as whole arrays.

`pyarrow.compute.strptime` reads 2015-02-30 as the second of March and no parts of a second, so the fields are taken by
a regular expression and put together here.
"""

import re
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.time_format import FIELDS, UNITS, fields_of
from persia_cli.data.read.arrow_types import Class, class_of

MONTHS = pa.array(["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"])
_EXAMPLE = datetime(2024, 1, 31, 12, 30)
_FAR = 2.0**62
_CENTURY = 69
"""The first year of two digits that is one before 2000."""


def classes_of(form: str | None) -> frozenset[Class]:
    """Return the classes of columns, other than times and texts, that a format can be read from."""
    return frozenset() if form is None else frozenset({"integer", "float", "decimal"} if form in UNITS else {"integer"})


def example_of(form: str) -> str:
    """Return a time that is written in a format."""
    if form in UNITS:
        return str(int(1_706_704_200_000_000 / UNITS[form]))
    return _EXAMPLE.strftime(form.replace("%z", "+0000"))


def written(array: Any, form: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the microseconds since 1970-01-01 of an array of texts or numbers, and which values are no times."""
    if form not in UNITS:
        return _by_fields(array, form)
    if class_of(array.type) == "text":
        array = pc.if_else(pc.match_substring_regex(array, r"^-?\d{1,18}(\.\d*)?$"), array, None)
    numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        micros = np.floor(numbers * UNITS[form])
    good = np.abs(micros) < _FAR
    return np.where(good, micros, 0.0).astype(np.int64), ~good


def _by_fields(array: Any, form: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    texts = pc.utf8_upper(pc.utf8_trim_whitespace(array.cast(pa.string())))
    found = pc.extract_regex(texts, pattern_of(form))
    given = set(fields_of(form))

    def text(name: str) -> Any:
        return pc.fill_null(pc.struct_field(found, name), "")

    def number(name: str, absent: int = 0) -> NDArray[np.int64]:
        if name not in given:
            return np.full(len(array), absent, np.int64)
        digits = pc.struct_field(found, name).fill_null(str(absent))
        values: NDArray[np.int64] = digits.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return values

    year, month, hour = number("Y"), number("m", 1), number("H")
    if "y" in given:
        short = number("y")
        year = short + np.where(short >= _CENTURY, 1900, 2000)
    if "b" in given:
        names = pc.utf8_slice_codeunits(text("b"), 0, 3)
        month = pc.index_in(names, MONTHS).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    if "I" in given:
        hour = number("I") % 12 + 12 * pc.equal(text("p"), "PM").to_numpy(zero_copy_only=False)
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (number("d", 1) - 1)
    wrong = found.is_null().to_numpy(zero_copy_only=False) | (days.astype("datetime64[M]") != months)
    seconds = (hour * 60 + number("M")) * 60 + number("S")
    if "z" in given:
        seconds -= _offsets(text("z"))
    micros = days.astype("datetime64[us]").astype(np.int64) + seconds * 1_000_000
    if "f" in given:
        micros += pc.utf8_slice_codeunits(pc.utf8_rpad(text("f"), 6, "0"), 0, 6).cast(pa.int64()).to_numpy(False)
    return micros, wrong


def _offsets(zones: Any) -> NDArray[np.int64]:
    """Return the seconds of offsets such as +02:00, and 0 of Z."""
    parts = pc.extract_regex(pc.replace_substring(zones, "Z", "+0000"), r"^(?P<s>[+-])(?P<h>\d\d):?(?P<m>\d\d)$")
    hours, minutes = (
        pc.struct_field(parts, name).fill_null("0").cast(pa.int64()).to_numpy(zero_copy_only=False) for name in "hm"
    )
    is_west = pc.equal(pc.struct_field(parts, "s").fill_null("+"), "-").to_numpy(zero_copy_only=False)
    seconds: NDArray[np.int64] = (hours * 60 + minutes) * 60 * np.where(is_west, -1, 1)
    return seconds


def pattern_of(form: str) -> str:
    """Return the regular expression of texts, in capitals, that fit a format, with a group for each field."""
    pieces = re.split("%(.)", form)
    for place, name in enumerate(fields_of(form)):
        pieces[2 * place + 1] = f"(?P<{name}>{FIELDS[name]})"
    pieces[::2] = [re.escape(each.upper()).replace(r"\ ", r"\s+") for each in pieces[::2]]
    return f"^{''.join(pieces)}$"
