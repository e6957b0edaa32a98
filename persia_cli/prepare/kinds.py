"""The kinds of columns in text files: how values are written, and how texts become values, whole columns at a time.

pyarrow's casts read what they can; a regular expression says which texts have the wrong form where a cast fails.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.data.ids import text_buffers, text_ids

LONGEST = 1 << 16
"""Largest number of bytes of a value."""

_INTEGER = r"^-?[0-9]{1,18}$"
_NUMBER = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,18})?$"

Flaw = tuple[NDArray[np.bool_], str]
"""True for each row whose value is wrong, and the reason."""


class Kind(NamedTuple):
    """The kind of values in a column of a text file."""

    name: str
    noun: str
    """The form that a value must have, for messages."""
    table: str | None = None
    """Table whose name seeds the hash of texts, if not the column itself."""
    digits: int = 0
    """Hexadecimal digits of a value, 0 for 1 to 16."""


SKIP = Kind("skip", "anything")
"""A column that is not used."""
INTEGER = Kind("integer", "an integer of at most 18 digits")
NUMBER = Kind("number", "a number")
"""A decimal number such as -1.5e3."""
TEXT = Kind("text", "text")
"""A category: text that is hashed to an id under the column's name."""
BYTES = Kind("bytes", "text")
"""Text that the recipe splits itself."""


def text_of(table: str) -> Kind:
    """Return the kind of a category that is hashed under the name of a table, which other columns read too."""
    return TEXT._replace(table=table)


def hexadecimal(digits: int) -> Kind:
    """Return the kind of an id of `digits` hexadecimal digits; 0 for 1 to 16 of them."""
    return Kind("hexadecimal", f"{digits or '1 to 16'} hexadecimal digits", digits=digits)


def values_of(kind: Kind, column: str, texts: Any) -> tuple[Any, list[Flaw]]:
    """Return the values of an Arrow array of strings, which need not be UTF-8, and what is wrong with some of them.

    Integers are int64, numbers float64, ids uint64, BYTES strings; null stands for null and for wrong ones.
    """
    flaws: list[Flaw] = []

    def reject(wrong: NDArray[np.bool_], reason: str) -> None:
        nonlocal texts
        if wrong.any():
            flaws.append((wrong, f"{column} {reason}"))
            texts = pc.if_else(pa.array(wrong), None, texts)

    if longest(texts) > LONGEST:
        reject(_true(pc.greater(pc.binary_length(texts), LONGEST)), f"is longer than {LONGEST >> 10} KiB")
    if kind.name in ("text", "bytes"):
        for wrong, reason in _unreadable(texts):
            reject(wrong, reason)
        return (texts if kind.name == "bytes" else text_ids(kind.table or column, texts)), flaws
    values = {"integer": _integers, "number": _numbers}.get(kind.name, _hexadecimal)(texts, kind)
    if values.null_count > texts.null_count:
        reject(_true(pc.and_(texts.is_valid(), values.is_null())), f"is not {kind.noun}")
    return values, flaws


def longest(texts: Any) -> int:
    """Return the number of bytes of the longest text."""
    return pc.max(pc.binary_length(texts)).as_py() or 0


def _integers(texts: Any, _: Kind) -> Any:
    letters = text_buffers(texts)[0].max(initial=0) > ord("9")  # a cast would read 0x1F
    if longest(texts) <= 18 and not letters:
        with suppress(pa.ArrowInvalid):
            return texts.cast(pa.int64())
    return _matching(texts, _INTEGER).cast(pa.int64())


def _numbers(texts: Any, _: Kind) -> Any:
    if longest(texts) <= 20:  # so that no exponent has more than 18 digits
        with suppress(pa.ArrowInvalid):
            values = texts.cast(pa.float64())
            if pc.all(pc.is_finite(values)).as_py() is not False:  # a cast reads nan and inf, too
                return values
    exact = [None if text is None else float(text) for text in _matching(texts, _NUMBER).to_pylist()]
    return pa.array(exact, pa.float64())


def _hexadecimal(texts: Any, kind: Kind) -> Any:
    # Most data holds no such ids, and numba takes half a second to import.
    from persia_cli.kernels.text import parse_hexadecimal

    ids, good = np.empty(len(texts), np.uint64), np.empty(len(texts), np.bool_)
    parse_hexadecimal(*text_buffers(texts), np.uint64(kind.digits), ids, good)
    return pa.array(ids, mask=~good | texts.is_null().to_numpy(zero_copy_only=False))


def _matching(texts: Any, pattern: str) -> Any:
    """Return the texts that match a pattern, null in place of the others."""
    bytes_ = texts.cast(pa.binary())
    return pc.if_else(pc.match_substring_regex(bytes_, pattern), bytes_, None).cast(pa.string())


def _unreadable(texts: Any) -> Iterator[Flaw]:
    """Yield the flaws of texts that are not UTF-8, or hold a NUL byte before the place where they are not."""
    with suppress(pa.ArrowInvalid):
        texts.validate(full=True)
        if not pc.any(pc.match_substring(texts, "\0")).as_py():
            return
    found = np.array([_flaw_of(text or b"") for text in texts.cast(pa.binary()).to_pylist()])
    for flaw in ("holds a NUL byte", "is not UTF-8"):
        yield found == flaw, flaw


def _flaw_of(text: bytes) -> str:
    try:
        whole = text.decode()
    except UnicodeDecodeError as error:
        return "holds a NUL byte" if b"\0" in text[: error.start] else "is not UTF-8"
    return "holds a NUL byte" if "\0" in whole else ""


def _true(mask: Any) -> NDArray[np.bool_]:
    """Return an Arrow array of booleans as a mask, False for null."""
    found: NDArray[np.bool_] = mask.fill_null(False).to_numpy(zero_copy_only=False)
    return found
