"""The format of a column of times: a unit of numbers since 1970, or the notation of strptime."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator

UNITS: Final = {"seconds": 1_000_000.0, "milliseconds": 1_000.0, "microseconds": 1.0, "nanoseconds": 0.001}
"""Microseconds in each unit of numbers since 1970-01-01."""
FIELDS: Final = {
    "Y": r"\d{4}", "y": r"\d\d", "m": r"1[0-2]|0?[1-9]", "d": r"3[01]|[12]\d|0?[1-9]", "H": r"2[0-3]|[01]?\d",
    "I": r"1[0-2]|0?[1-9]", "M": r"[0-5]?\d", "S": r"[0-5]?\d", "f": r"\d{1,9}", "p": r"[AP]M",
    "b": r"(?:JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)[A-Z]*",
    "a": r"(?:MON|TUE|WED|THU|FRI|SAT|SUN)[A-Z]*", "z": r"Z|[+-]\d\d:?\d\d",
}  # fmt: skip
"""The regular expression of each field of a format, over texts in capitals."""


def fields_of(form: str) -> list[str]:
    """Return the letters of the fields of a format, in their order; names in full are read as short ones."""
    return [{"B": "b", "A": "a"}.get(letter, letter) for letter in re.findall("%(.?)", form)]


def _checked(form: str) -> str:
    if form in UNITS:
        return form
    given = fields_of(form)
    if wrong := [letter for letter in given if letter not in FIELDS or given.count(letter) > 1]:
        raise ValueError(f"%{wrong[0]} is given twice, or is no field; those there are: %{', %'.join(FIELDS)}")
    if not {"Y", "y"} & {*given} or ("d" in given and not {"m", "b"} & {*given}) or ("I" in given) != ("p" in given):
        raise ValueError(
            f"{form!r} does not determine a time: give a year (%Y or %y), a month before a day, %p with %I, or a unit "
            f"since 1970 ({', '.join(UNITS)})"
        )
    return form


TimeFormat = Annotated[str, AfterValidator(_checked)]
