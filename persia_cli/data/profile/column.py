"""The statistics of one column in one split, updated as its values are read."""

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.data.arrow_types import class_of, is_list, is_number, is_text, plain_type
from persia_cli.data.ids import text_ids
from persia_cli.data.profile.ids import IdSketch, joined
from persia_cli.data.profile.numbers import LengthSketch, NumberSketch
from persia_cli.data.profile.tally import Tally

Kind = Literal["number", "integer", "list", "text", "time", "other"]
"""The kind of a column's values: numbers with a fraction, integers, lists of integers or text, text, dates or
timestamps, or others."""

_NAMED = 64
FEW = 1000
"""Distinct whole numbers up to which a column of floats may hold ids."""
_EXACT = 2.0**53
"""Whole numbers from which on floats cannot represent each one."""


def kind_of(arrow_type: Any) -> Kind:
    """Return the kind of an Arrow type's values."""
    plain = plain_type(arrow_type)
    if pa.types.is_integer(plain):
        return "integer"
    if is_number(plain):
        return "number"
    if is_list(plain) and class_of(plain.value_type) in ("integer", "text"):
        return "list"
    if is_text(plain):
        return "text"
    return "time" if class_of(plain) in ("date", "timestamp") else "other"


def type_name(arrow_type: Any) -> str:
    """Return a short name of an Arrow type; of a dictionary, the name of its value type."""
    plain = plain_type(arrow_type)
    return f"list<{plain_type(plain.value_type)}>" if is_list(plain) else str(plain)


class ColumnSketch:
    """Statistics of a column; `texts` holds the texts of its frequent ids."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.rows = 0
        self.nulls = 0
        self.ids = IdSketch()
        self.numbers = NumberSketch()
        self.lengths = LengthSketch()
        self.texts: dict[int, str] = {}
        self.may_be_ids = kind not in ("time", "other")
        """True if all values so far can be ids; floats can only if they are whole and few."""

    def add(self, column: Any, picked: NDArray[np.bool_], tally: Tally) -> None:
        """Add the values of an Arrow array; rows that are True in `picked` are sampled."""
        self.rows += len(column)
        self.nulls += column.null_count
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if self.kind in ("number", "integer"):
            values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            self.numbers.add(values, picked, column.null_count)
            if self.kind == "number" and self.may_be_ids:
                self._add_whole(values[np.isfinite(values)], tally)
        match self.kind:
            case "integer":
                self.ids.add(_bits(column), tally)
            case "list":
                lengths = pc.list_value_length(column).drop_null().cast(pa.int64())
                self.lengths.add(lengths.to_numpy(zero_copy_only=False))
                values = column.flatten()
                if is_text(plain_type(values.type)):
                    self._add_text(values, tally)
                else:
                    self.ids.add(_bits(values), tally)
            case "text":
                self._add_text(column, tally)

    def joined(self, other: "ColumnSketch", tally: Tally) -> "ColumnSketch":
        """Return the statistics of both splits' values together, without the sample of ids."""
        both = ColumnSketch(self.kind)
        both.rows, both.nulls = self.rows + other.rows, self.nulls + other.nulls
        both.ids = joined(self.ids, other.ids, tally)
        both.numbers = self.numbers.joined(other.numbers)
        both.lengths = self.lengths.joined(other.lengths)
        both.texts = self.texts | other.texts
        both.may_be_ids = self.may_be_ids and other.may_be_ids
        return both

    def forget_ids(self) -> None:
        """Stop treating the values as ids."""
        self.may_be_ids, self.ids = False, IdSketch()

    def _add_whole(self, values: NDArray[np.float64], tally: Tally) -> None:
        """Add numbers as ids; stop doing so once a number has a fraction or there are too many of them."""
        if not ((np.trunc(values) == values) & (np.abs(values) < _EXACT)).all():
            self.forget_ids()
            return
        self.ids.add(values.astype(np.int64).view(np.uint64), tally)
        if not self.ids.is_exact or self.ids.distinct > FEW:
            self.forget_ids()

    def _add_text(self, column: Any, tally: Tally) -> None:
        encoded = column.drop_null()
        if not pa.types.is_dictionary(encoded.type):
            encoded = encoded.dictionary_encode()
        texts = encoded.dictionary
        ids = text_ids("", texts).to_numpy(zero_copy_only=False)
        counts = np.bincount(encoded.indices.to_numpy(zero_copy_only=False), minlength=ids.size)
        self.ids.add(ids, tally, counts.astype(np.int64))
        # An id can become frequent only in a block that holds it, so its text is available here.
        top = self.ids.top(_NAMED)
        for place in np.flatnonzero(np.isin(ids, np.array([*top], np.uint64))).tolist():
            text = texts[place].as_py()
            self.texts[int(ids[place])] = text.decode(errors="replace") if isinstance(text, bytes) else text
        self.texts = {number: text for number, text in self.texts.items() if number in top}


def _bits(values: Any) -> NDArray[np.uint64]:
    """Return the integers that are not null as uint64, negative ones as their two's complement."""
    values = values.cast(plain_type(values.type))
    wide = pa.uint64() if pa.types.is_unsigned_integer(values.type) else pa.int64()
    ids: NDArray[np.uint64] = values.drop_null().cast(wide).to_numpy(zero_copy_only=False).view(np.uint64)
    return ids
