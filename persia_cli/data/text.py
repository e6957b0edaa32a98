"""Delimited text as blocks of typed columns: what does not parse is counted and told by line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.data.ids import seed_of, text_id, text_ids
from persia_cli.data.lines import first_line
from persia_cli.errors import DataError
from persia_cli.kernels import fields
from persia_cli.kernels.text import BLANK, COMMENT, NONE, OPEN_QUOTE, parse_lines

_SIZE_BITS = np.uint64(2**32 - 1)


class Kind(NamedTuple):
    """What a column of a text file holds."""

    code: int
    noun: str
    """What a value must be, for messages."""
    table: str | None = None
    """Name that texts are hashed under, where it is not the column's."""
    digits: int = 0
    """Hexadecimal digits of a value, 0 for 1 to 16."""


SKIP = Kind(int(fields.SKIP), "anything")
"""Nothing that is used."""
INTEGER = Kind(int(fields.INTEGER), "an integer of at most 18 digits")
NUMBER = Kind(int(fields.NUMBER), "a number")
"""A decimal number such as -1.5e3."""
TEXT = Kind(int(fields.TEXT), "text")
"""A category: text that is hashed to an id under the column's name."""
BYTES = Kind(int(fields.BYTES), "text")
"""Text that the recipe takes apart itself."""


def text_of(table: str) -> Kind:
    """A category that is hashed under the name of a table, which other columns share."""
    return TEXT._replace(table=table)


def hexadecimal(digits: int) -> Kind:
    """An id of so many hexadecimal digits; 0 for 1 to 16 of them."""
    return Kind(int(fields.HEXADECIMAL), f"{digits or '1 to 16'} hexadecimal digits", digits=digits)


@dataclass(frozen=True)
class TextFormat:
    """How a text file is laid out."""

    columns: Mapping[str, Kind]
    delimiter: str = "\t"
    """One or two ASCII characters."""
    header: bool = False
    """Whether the first line names the columns; it must name just these."""
    quoted: bool = False
    """Whether fields may stand in double quotes, a doubled one standing for itself; no line ends inside."""
    stripped: bool = False
    """Whether blanks around a value are no part of it."""
    comment: str = ""
    """Character that lines begin with which are no rows."""
    blank_lines: bool = False
    """Whether empty lines are allowed; they are no rows."""

    def rules(self) -> NDArray[np.uint64]:
        """Return what the kernel is told: uint64[5], see `parse_lines`."""
        first, *second = self.delimiter.encode()
        quote, comment = ord('"') if self.quoted else NONE, ord(self.comment) if self.comment else NONE
        return np.array([first, second[0] if second else NONE, quote, comment, self.stripped], np.uint64)

    def parameters(self) -> NDArray[np.uint64]:
        """Return the seed or the number of digits of each column."""
        seeds = {name: seed_of(kind.table or name) for name, kind in self.columns.items() if kind.code == fields.TEXT}
        return np.array([seeds.get(name, kind.digits) for name, kind in self.columns.items()], np.uint64)

    def check_header(self, file: Path) -> None:
        """Raise DataError if the first line of a file does not name the columns."""
        names = header_of(file, self.delimiter)
        if names != list(self.columns):
            raise DataError(
                f"{file}: its first line should name the columns {self.delimiter.join(self.columns)}, but says "
                f"{self.delimiter.join(names)[:500]}"
            )


def header_of(file: Path, delimiter: str) -> list[str]:
    """Return the names in the first line of a file; raises DataError if it cannot be read."""
    try:
        names = first_line(file).decode().split(delimiter)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{file}: its first line cannot be read, {error}") from error
    return [name.strip().removeprefix('"').removesuffix('"') for name in names]


class Rejected(Protocol):
    """Where bad rows are counted."""

    def reject(self, lines: NDArray[np.int64], reasons: Sequence[str]) -> None:
        """Count lines, numbered in what is read from 0 on; `reasons` are one for each, or one for all."""


@dataclass
class TextBlock:
    """Some rows of a text file, n of them; `good` [n] says which are still fit for use."""

    format: TextFormat
    data: NDArray[np.uint8]
    """The bytes of the lines."""
    lines: NDArray[np.int64]
    """int64[n]: the line of each row."""
    log: Rejected
    values: Mapping[str, NDArray[np.uint64]]
    """64 bits for each field, uint64[n] by column, see `parse_field`."""
    states: Mapping[str, NDArray[np.uint8]]
    good: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.good = np.ones(len(self.lines), np.bool_)

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.lines)

    def integers(self, name: str, missing: int | None = None) -> NDArray[np.int64]:
        """Return an INTEGER column as int64[n]; an empty field is `missing`, or a bad row."""
        return self._filled(name, self.values[name].view(np.int64), missing)

    def numbers(self, name: str, missing: float | None = None) -> NDArray[np.float64]:
        """Return a NUMBER column as float64[n]; an empty field is `missing`, or a bad row."""
        values, states = self.values[name].view(np.float64), self.states[name]
        for row in np.flatnonzero(states == fields.LONG_NUMBER).tolist():
            values[row], states[row] = float(self._bytes(name, row)), fields.GOOD
        self.reject((states == fields.GOOD) & np.isinf(values), f"{name} is too large a number")
        return self._filled(name, values, missing)

    def ids(self, name: str) -> Any:
        """Return a TEXT, hexadecimal or INTEGER column as an Arrow array of uint64, null for empty fields."""
        values, states = self.values[name], self.states[name]
        table = self.format.columns[name].table or name
        for row in np.flatnonzero(states == fields.ESCAPED).tolist():
            values[row], states[row] = text_id(table, self._bytes(name, row).decode()), fields.GOOD
        return _with_nulls(values, states == fields.MISSING)

    def texts(self, name: str) -> Any:
        """Return a BYTES column as an Arrow array of strings, null for empty fields."""
        places, states = self.values[name], self.states[name]
        there, escaped = (states == fields.GOOD) | (states == fields.ESCAPED), states == fields.ESCAPED
        sizes = np.where(there, places & _SIZE_BITS, np.uint64(0)).astype(np.int64)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        starts = (places >> np.uint64(32)).astype(np.int64)
        chosen = self.data[np.repeat(starts - ends[:-1], sizes) + np.arange(ends[-1])]
        bits = pa.py_buffer(np.packbits(states != fields.MISSING, bitorder="little"))
        buffers = [bits, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(chosen)]
        texts = pa.Array.from_buffers(pa.string(), self.size, buffers)
        return pc.if_else(pa.array(escaped), pc.replace_substring(texts, '""', '"'), texts) if escaped.any() else texts

    def id_lists(self, name: str, separator: str, table: str | None = None) -> Any:
        """Return a BYTES column of categories joined by `separator` as Arrow lists of uint64; an empty field is []."""
        pieces = pc.split_pattern(self.texts(name).fill_null(""), separator)
        ids = text_ids(table or name, pieces.values)
        empty = pc.equal(pieces.values, "").to_numpy(zero_copy_only=False)
        bounds = np.concatenate([[0], np.cumsum(~empty)])[pieces.offsets.to_numpy()]
        return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), ids.filter(pa.array(~empty)))

    def choices(self, name: str, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return where the values of a TEXT column stand in `texts`; any other value is a bad row."""
        table = self.format.columns[name].table or name
        known = np.array([text_id(table, text) for text in texts], np.uint64)
        order = np.argsort(known)
        ids = self.ids(name).fill_null(0).to_numpy()
        place: NDArray[np.int64] = order[np.minimum(np.searchsorted(known[order], ids), len(texts) - 1)]
        self.reject(known[place] != ids, f"{name} is not {' or '.join(texts)}")
        return place

    def drop(self, rows: NDArray[np.bool_]) -> None:
        """Leave rows out without counting them."""
        self.good &= ~rows

    def reject(self, wrong: NDArray[np.bool_], reason: str) -> None:
        """Count those of the good rows that are wrong, and leave them out."""
        wrong = wrong & self.good
        if wrong.any():
            self.good &= ~wrong
            self.log.reject(self.lines[wrong], [reason])

    def table(self, columns: Mapping[str, Any]) -> Any:
        """Return the good rows of columns [n] as an Arrow table."""
        table = pa.table(dict(columns))
        return table if self.good.all() else table.filter(pa.array(self.good))

    def _filled(self, name: str, values: NDArray[Any], missing: float | None) -> NDArray[Any]:
        empty = self.states[name] != fields.GOOD
        if missing is None:
            self.reject(empty, f"{name} is missing")
        values[empty] = missing or 0
        return values

    def _bytes(self, name: str, row: int) -> bytes:
        place = self.values[name][row]
        start = int(place >> np.uint64(32))
        text = self.data[start : start + int(place & _SIZE_BITS)].tobytes()
        return text.replace(b'""', b'"') if self.states[name][row] == fields.ESCAPED else text


def parse_block(data: bytes, format: TextFormat, log: Rejected, first_line: int) -> tuple[TextBlock, int]:
    """Parse whole lines, the first of which is line `first_line`; returns their rows and the number of lines."""
    raw = np.frombuffer(data, np.uint8)
    capacity, columns = data.count(b"\n"), len(format.columns)
    values = np.empty((columns, capacity), np.uint64)
    states = np.empty((columns, capacity), np.uint8)
    lines, reasons = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    counts = np.zeros(3, np.int64)
    kinds = np.array([kind.code for kind in format.columns.values()], np.uint8)
    parse_lines(
        raw, format.rules(), kinds, format.parameters(), values.reshape(-1), states.reshape(-1), lines, reasons, counts
    )
    rows, others, wrong = counts.tolist()
    lines += first_line
    if others:
        _reject_lines(lines[::-1][:others], reasons[::-1][:others], format, log)
    names = list(format.columns)
    block = TextBlock(
        format, raw, lines[:rows], log,
        dict(zip(names, values[:, :rows], strict=True)), dict(zip(names, states[:, :rows], strict=True)),
    )  # fmt: skip
    if wrong:
        _reject_fields(block)
    return block, capacity


def _reject_lines(lines: NDArray[np.int64], reasons: NDArray[np.int64], format: TextFormat, log: Rejected) -> None:
    allowed = reasons == COMMENT
    if format.blank_lines:
        allowed |= reasons == BLANK
    told = {int(BLANK): "the line is empty", int(OPEN_QUOTE): "a quote is not closed where its field ends"}
    texts: list[str] = []
    for reason in reasons[~allowed].tolist():
        there = f"{reason} column{'' if reason == 1 else 's'}"
        texts.append(told.get(reason) or f"{there} where {len(format.columns)} belong")
    if texts:
        log.reject(lines[~allowed], texts)


def _reject_fields(block: TextBlock) -> None:
    """Take out the rows with a field that cannot be what its column should be."""
    for name, kind in block.format.columns.items():
        states = block.states[name]
        if states.max(initial=0) < fields.WRONG:
            continue
        block.reject(states == fields.TOO_LONG, f"{name} is longer than {int(fields.LONGEST) >> 10} KiB")
        block.reject(states == fields.NUL, f"{name} holds a NUL byte")
        block.reject(states == fields.NOT_UTF8, f"{name} is not UTF-8")
        block.reject(states == fields.WRONG, f"{name} is not {kind.noun}")


def _with_nulls(values: NDArray[np.uint64], null: NDArray[np.bool_]) -> Any:
    """Return an Arrow array over the values, which it does not copy."""
    count = int(np.count_nonzero(null))
    bits = pa.py_buffer(np.packbits(~null, bitorder="little")) if count else None
    return pa.Array.from_buffers(pa.uint64(), len(values), [bits, pa.py_buffer(values)], count)
