"""What is remembered of one column in one split while its values stream by."""

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.data.columns import is_list, is_number, is_text
from persia_cli.data.ids import text_ids
from persia_cli.data.profile.ids import IdSketch, joined
from persia_cli.data.profile.numbers import LengthSketch, NumberSketch
from persia_cli.data.profile.tally import Tally

Kind = Literal["number", "integer", "list", "text", "other"]
"""What a column's values are: numbers with a fraction, integers, lists of integers, text, or none of these."""

_NAMED = 64


def kind_of(arrow_type: Any) -> Kind:
    """Return what the values of an Arrow type are."""
    plain = arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type
    if pa.types.is_integer(plain):
        return "integer"
    if is_number(plain):
        return "number"
    if is_list(plain) and pa.types.is_integer(plain.value_type):
        return "list"
    return "text" if is_text(plain) else "other"


def type_name(arrow_type: Any) -> str:
    """Return the name of an Arrow type, short: that of its values where they are encoded by a dictionary."""
    plain = arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type
    return f"list<{plain.value_type}>" if is_list(plain) else str(plain)


class ColumnSketch:
    """Figures of a column; `texts` has the text of the ids that are frequent."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.rows = 0
        self.nulls = 0
        self.ids = IdSketch()
        self.numbers = NumberSketch()
        self.lengths = LengthSketch()
        self.texts: dict[int, str] = {}

    def add(self, column: Any, picked: NDArray[np.bool_], tally: Tally) -> None:
        """Take an Arrow array in; rows that are `picked` go into samples."""
        self.rows += len(column)
        self.nulls += column.null_count
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if self.kind in ("number", "integer"):
            values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            self.numbers.add(values, picked, column.null_count)
        match self.kind:
            case "integer":
                self.ids.add(_bits(column), tally)
            case "list":
                lengths = pc.list_value_length(column).drop_null().cast(pa.int64())
                self.lengths.add(lengths.to_numpy(zero_copy_only=False))
                self.ids.add(_bits(column.flatten()), tally)
            case "text":
                self._add_text(column, tally)

    def joined(self, other: "ColumnSketch", tally: Tally) -> "ColumnSketch":
        """Return what the values of both splits would have left, but for the sample of ids."""
        both = ColumnSketch(self.kind)
        both.rows, both.nulls = self.rows + other.rows, self.nulls + other.nulls
        both.ids = joined(self.ids, other.ids, tally)
        both.numbers = self.numbers.joined(other.numbers)
        both.lengths = self.lengths.joined(other.lengths)
        both.texts = self.texts | other.texts
        return both

    def _add_text(self, column: Any, tally: Tally) -> None:
        encoded = column.drop_null().dictionary_encode()
        texts = encoded.dictionary
        ids = text_ids("", texts).to_numpy(zero_copy_only=False)
        counts = np.bincount(encoded.indices.to_numpy(zero_copy_only=False), minlength=ids.size)
        self.ids.add(ids, tally, counts.astype(np.int64))
        # An id becomes frequent in a block that it is in, so its text is at hand.
        top = self.ids.top(_NAMED)
        for place in np.flatnonzero(np.isin(ids, np.array([*top], np.uint64))).tolist():
            text = texts[place].as_py()
            self.texts[int(ids[place])] = text.decode(errors="replace") if isinstance(text, bytes) else text
        self.texts = {number: text for number, text in self.texts.items() if number in top}


def _bits(values: Any) -> NDArray[np.uint64]:
    """Return the integers that are not null as uint64, negative ones as their two's complement."""
    wide = pa.uint64() if pa.types.is_unsigned_integer(values.type) else pa.int64()
    ids: NDArray[np.uint64] = values.drop_null().cast(wide).to_numpy(zero_copy_only=False).view(np.uint64)
    return ids
