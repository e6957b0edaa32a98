"""The kinds of columns in text files: how values are written, and how texts become values, whole columns at a time.

pyarrow's casts read what they can; where a cast fails, a regular expression finds the wrong texts.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.data.read.ids import text_buffers, text_ids
from persia_cli.data.read.text import not_utf8

_INTEGER = r"^-?[0-9]{1,18}$"
_NUMBER = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,18})?$"

Flaw = tuple[NDArray[np.bool_], str]
"""True for each row whose value is wrong, and the reason."""


class Kind(NamedTuple):
    """The kind of values in a column of a text file."""

    name: str
    noun: str
    """The format that a value must have, for messages."""
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

    def reject(wrong: NDArray[np.bool_] | None, reason: str) -> None:
        nonlocal texts
        if wrong is not None and wrong.any():
            flaws.append((wrong, f"{column} {reason}"))
            texts = pc.if_else(pa.array(wrong), None, texts)

    if kind.name in ("text", "bytes"):
        reject(not_utf8(texts), "is not UTF-8")
        if pc.any(has_nul := pc.match_substring(texts, "\0")).as_py():
            reject(has_nul.fill_null(False).to_numpy(zero_copy_only=False), "holds a NUL byte")
        return (texts if kind.name == "bytes" else text_ids(kind.table or column, texts)), flaws
    content, bounds = text_buffers(texts)
    if kind.name == "hexadecimal":
        values = _hexadecimal(texts, content, bounds, kind.digits)
    elif kind.name == "integer":
        # Most texts are of digits alone; of the others, a cast would also read longer ones, and 0x1F.
        others = np.flatnonzero(content - np.uint8(ord("0")) > np.uint8(9))
        rows = np.union1d(np.searchsorted(bounds, others, side="right") - 1, np.flatnonzero(np.diff(bounds) > 18))
        matches = pc.match_substring_regex(texts.take(pa.array(rows, pa.int64())).cast(pa.binary()), _INTEGER)
        wrong = np.zeros(len(texts), np.bool_)
        wrong[rows] = ~matches.fill_null(True).to_numpy(zero_copy_only=False)
        reject(wrong, f"is not {kind.noun}")
        values = texts.cast(pa.int64())
    else:
        matches = pc.match_substring_regex(texts.cast(pa.binary()), _NUMBER).fill_null(True)
        reject(~matches.to_numpy(zero_copy_only=False), f"is not {kind.noun}")
        try:
            values = texts.cast(pa.float64())
        except pa.ArrowInvalid:  # a number beyond float64
            values = pa.array([None if text is None else float(text) for text in texts.to_pylist()], pa.float64())
    if values.null_count > texts.null_count:
        reject(pc.and_(texts.is_valid(), values.is_null()).to_numpy(zero_copy_only=False), f"is not {kind.noun}")
    return values, flaws


def _hexadecimal(texts: Any, content: NDArray[np.uint8], bounds: NDArray[np.int64], digits: int) -> Any:
    # Most data holds no such ids, and numba takes half a second to import.
    from persia_cli.kernels.batch.text import parse_hexadecimal

    ids, good = np.empty(len(texts), np.uint64), np.empty(len(texts), np.bool_)
    parse_hexadecimal(content, bounds, np.uint64(digits), ids, good)
    return pa.array(ids, mask=~good)
