"""Delimited text as blocks of typed columns; rows that do not parse are counted and reported by line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.data.ids import seed_of, text_id, text_ids
from persia_cli.errors import DataError
from persia_cli.kernels import fields
from persia_cli.kernels.text import BLANK, COMMENT, NONE, OPEN_QUOTE, parse_lines
from persia_cli.prepare.lines import first_line

_SIZE_BITS = np.uint64(2**32 - 1)


class Kind(NamedTuple):
    """The kind of values in a column of a text file."""

    code: int
    noun: str
    """The form that a value must have, for messages."""
    table: str | None = None
    """Table whose name seeds the hash of texts, if not the column itself."""
    digits: int = 0
    """Hexadecimal digits of a value, 0 for 1 to 16."""


SKIP = Kind(int(fields.SKIP), "anything")
"""A column that is not used."""
INTEGER = Kind(int(fields.INTEGER), "an integer of at most 18 digits")
NUMBER = Kind(int(fields.NUMBER), "a number")
"""A decimal number such as -1.5e3."""
TEXT = Kind(int(fields.TEXT), "text")
"""A category: text that is hashed to an id under the column's name."""
BYTES = Kind(int(fields.BYTES), "text")
"""Text that the recipe splits itself."""


def text_of(table: str) -> Kind:
    """Return the kind of a category that is hashed under the name of a table, which other columns read too."""
    return TEXT._replace(table=table)


def hexadecimal(digits: int) -> Kind:
    """Return the kind of an id of `digits` hexadecimal digits; 0 for 1 to 16 of them."""
    return Kind(int(fields.HEXADECIMAL), f"{digits or '1 to 16'} hexadecimal digits", digits=digits)


@dataclass(frozen=True)
class TextFormat:
    """The layout of a text file."""

    columns: Mapping[str, Kind]
    delimiter: str = "\t"
    """One or two ASCII characters."""
    header: bool = False
    """True if the first line names the columns; it must name exactly these."""
    quoted: bool = False
    """True if fields may be in double quotes, with "" for a quote inside; line ends inside are not allowed."""
    stripped: bool = False
    """True if blanks around a value are removed."""
    comment: str = ""
    """First character of lines that are comments and not rows."""
    blank_lines: bool = False
    """True if empty lines are allowed; they are not rows."""

    def rules(self) -> NDArray[np.uint64]:
        """Return the format for the kernel: uint64[5], see `parse_lines`."""
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
    """A receiver of bad rows."""

    def reject(self, lines: NDArray[np.int64], reasons: Sequence[str]) -> None:
        """Count lines, numbered from 0 in the text that is read; `reasons` has one for each, or one for all."""


@dataclass
class TextBlock:
    """Some rows of a text file, n of them; `good` [n] is True for those still in use."""

    format: TextFormat
    data: NDArray[np.uint8]
    """The bytes of the lines."""
    lines: NDArray[np.int64]
    """int64[n]: the line number of each row."""
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
        """Return the index in `texts` of each value of a TEXT column; any other value is a bad row."""
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
        """Count the good rows that are True in `wrong`, and leave them out."""
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
    """Parse whole lines, the first of which is line `first_line`; return their rows and the number of lines."""
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
    messages = {int(BLANK): "the line is empty", int(OPEN_QUOTE): "a quote is not closed where its field ends"}
    texts: list[str] = []
    for reason in reasons[~allowed].tolist():
        there = f"{reason} column{'' if reason == 1 else 's'}"
        texts.append(messages.get(reason) or f"{there} where {len(format.columns)} belong")
    if texts:
        log.reject(lines[~allowed], texts)


def _reject_fields(block: TextBlock) -> None:
    """Reject the rows with a field that does not have the form of its column."""
    for name, kind in block.format.columns.items():
        states = block.states[name]
        if states.max(initial=0) < fields.WRONG:
            continue
        block.reject(states == fields.TOO_LONG, f"{name} is longer than {int(fields.LONGEST) >> 10} KiB")
        block.reject(states == fields.NUL, f"{name} holds a NUL byte")
        block.reject(states == fields.NOT_UTF8, f"{name} is not UTF-8")
        block.reject(states == fields.WRONG, f"{name} is not {kind.noun}")


def _with_nulls(values: NDArray[np.uint64], null: NDArray[np.bool_]) -> Any:
    """Return an Arrow array over the values without copying them."""
    count = int(np.count_nonzero(null))
    bits = pa.py_buffer(np.packbits(~null, bitorder="little")) if count else None
    return pa.Array.from_buffers(pa.uint64(), len(values), [bits, pa.py_buffer(values)], count)
