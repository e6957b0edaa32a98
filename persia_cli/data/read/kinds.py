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

from persia_cli.data.read.ids import text_buffers, text_ids

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

    content, bounds = text_buffers(texts)
    sizes = np.diff(bounds)
    longest = int(sizes.max(initial=0))
    if longest > LONGEST:
        reject(sizes > LONGEST, f"is longer than {LONGEST >> 10} KiB")
        content, bounds = text_buffers(texts)
    if kind.name in ("text", "bytes"):
        for wrong, reason in _unreadable(texts):
            reject(wrong, reason)
        return (texts if kind.name == "bytes" else text_ids(kind.table or column, texts)), flaws
    if kind.name == "integer":
        reject(_wrong_integers(texts, content, bounds), f"is not {kind.noun}")
        values = texts.cast(pa.int64())
    elif kind.name == "number":
        # With 20 characters no exponent has more than 18 digits. A cast reads infinity and nan, too.
        values = _cast(texts, pa.float64()) if longest <= 20 else None
        if values is None or pc.all(pc.is_finite(values)).as_py() is False:
            exact = [None if text is None else float(text) for text in _matching(texts, _NUMBER).to_pylist()]
            values = pa.array(exact, pa.float64())
    else:
        values = _hexadecimal(texts, content, bounds, kind.digits)
    if values.null_count > texts.null_count:
        wrong = pc.and_(texts.is_valid(), values.is_null())
        reject(wrong.to_numpy(zero_copy_only=False), f"is not {kind.noun}")
    return values, flaws


def _wrong_integers(texts: Any, content: NDArray[np.uint8], bounds: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return True for each text that is no integer; a cast would also read longer ones, and 0x1F."""
    others = np.flatnonzero(content - np.uint8(ord("0")) > np.uint8(9))  # a minus, or what does not belong there
    rows = np.union1d(np.searchsorted(bounds, others, side="right") - 1, np.flatnonzero(np.diff(bounds) > 18))
    wrong = np.zeros(len(texts), np.bool_)
    some = texts.take(pa.array(rows, pa.int64())).cast(pa.binary())
    wrong[rows] = ~pc.match_substring_regex(some, _INTEGER).fill_null(True).to_numpy(zero_copy_only=False)
    return wrong


def _cast(texts: Any, kind: Any) -> Any:
    """Return texts as numbers, None if one of them is not written as a number."""
    with suppress(pa.ArrowInvalid):
        return texts.cast(kind)
    return None


def _hexadecimal(texts: Any, content: NDArray[np.uint8], bounds: NDArray[np.int64], digits: int) -> Any:
    # Most data holds no such ids, and numba takes half a second to import.
    from persia_cli.kernels.text import parse_hexadecimal

    ids, good = np.empty(len(texts), np.uint64), np.empty(len(texts), np.bool_)
    parse_hexadecimal(content, bounds, np.uint64(digits), ids, good)
    return pa.array(ids, mask=~good)


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
