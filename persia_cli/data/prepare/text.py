"""Delimited text as blocks of typed columns; rows that do not parse are counted and reported by line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.raw import RawColumns
from persia_cli.data.read.bad_rows import Reject
from persia_cli.data.read.ids import text_id
from persia_cli.data.read.kinds import SKIP, Kind, values_of
from persia_cli.data.read.raw_values import made_of, text_lists
from persia_cli.data.read.text import Layout, TextFile, TextRows, header_of, texts_of
from persia_cli.errors import DataError


@dataclass(frozen=True)
class TextFormat(Layout):
    """The layout of a text file, whose header must name exactly its columns."""

    columns: Mapping[str, Kind]
    stripped: bool = False
    """True if blanks around a value are removed."""

    def check_header(self, file: Path) -> None:
        """Raise DataError if the first line of a file does not name the columns."""
        names = [name.strip(' "') for name in header_of(TextFile(str(file)), self)]
        if names != list(self.columns):
            raise DataError(
                f"{file}: its first line should name the columns {self.delimiter.join(self.columns)}, but says "
                f"{self.delimiter.join(names)[:500]}"
            )


@dataclass
class TextBlock:
    """Some rows of a text file, n of them; `good` [n] is True for those still in use."""

    format: TextFormat
    lines: NDArray[np.int64]
    """int64[n]: the line number of each row."""
    reject_lines: Reject
    values: dict[str, Any]
    """Arrow array of each column, see `persia_cli.data.read.kinds.values_of`."""
    good: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.good = np.ones(len(self.lines), np.bool_)

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.lines)

    def integers(self, name: str, missing: int | None = None) -> NDArray[np.int64]:
        """Return an INTEGER column as int64[n]; an empty field is `missing`, or a bad row."""
        return self._filled(name, missing)

    def numbers(self, name: str, missing: float | None = None) -> NDArray[np.float64]:
        """Return a NUMBER column as float64[n]; an empty field is `missing`, or a bad row."""
        values: NDArray[np.float64] = self._filled(name, missing)
        self.reject(np.isinf(values), f"{name} is too large a number")
        return values

    def ids(self, name: str) -> Any:
        """Return a TEXT, hexadecimal or INTEGER column as an Arrow array of uint64, null for empty fields."""
        return self.values[name].view(pa.uint64())

    def texts(self, name: str) -> Any:
        """Return a BYTES column as an Arrow array of strings, null for empty fields."""
        return self.values[name]

    def made(self, raw: Sequence[RawColumns]) -> dict[str, Any]:
        """Return columns by their declaration; an empty field that has no number in its place is a bad row or null."""
        columns: dict[str, Any] = {}
        for declaration in raw:
            for column in declaration.columns:
                field = declaration.field_of(column)
                self._require_stripped(declaration, field)
                if declaration.read == "integer":
                    values: Any = self.integers(
                        field, None if declaration.missing is None else int(declaration.missing)
                    )
                elif declaration.read == "number":
                    values = self.numbers(field, declaration.missing)
                elif declaration.read == "absence":
                    values = self.values[field].is_null().to_numpy(zero_copy_only=False).astype(np.float32)
                elif declaration.read == "texts":
                    values = self.id_lists(field, declaration.separator or "", declaration.table, declaration.stripped)
                else:
                    values = self.ids(field)
                    self._require_table(declaration, column)
                columns[column] = made_of(declaration, column, values, self.reject)
        return columns

    def _require_table(self, raw: RawColumns, column: str) -> None:
        """Raise DataError for a column that the format hashes under another name than its declaration says."""
        field, declared = raw.field_of(column), raw.table_of(column)
        hashed = self.format.columns[field].table or field
        if declared is not None and declared != hashed:
            raise DataError(
                f"{field} is hashed as {hashed} where the file is read, and as {declared} where {column} is made"
            )

    def _require_stripped(self, raw: RawColumns, field: str) -> None:
        """Raise DataError for text whose blanks are removed where the file is read and not in requests, or reversely.

        In requests numbers with blanks are refused.
        """
        if raw.read in ("text", "texts", "hexadecimal") and raw.stripped != self.format.stripped:
            read, declared = (
                "with" if is_stripped else "without" for is_stripped in (self.format.stripped, raw.stripped)
            )
            raise DataError(
                f"{field} is read {read} `stripped` where the file is read, and declared {declared} it; let both agree"
            )

    def id_lists(self, name: str, separator: str, table: str | None = None, stripped: bool = False) -> Any:
        """Return a BYTES column of categories joined by `separator` as Arrow lists of uint64; an empty field is []."""
        return text_lists(table or name, pc.split_pattern(self.texts(name).fill_null(""), separator), stripped)

    def choices(self, name: str, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the index in `texts` of each value of a TEXT column; any other value is a bad row."""
        table = self.format.columns[name].table or name
        known = pa.array([text_id(table, text) for text in texts], pa.uint64())
        places = pc.index_in(self.ids(name), known)
        self.reject(places.is_null().to_numpy(zero_copy_only=False), f"{name} is not {' or '.join(texts)}")
        return np.array(places.fill_null(0), np.int64)

    def reject(self, wrong: NDArray[np.bool_], reason: str) -> None:
        """Count the good rows that are True in `wrong`, and leave them out."""
        wrong = wrong & self.good
        if wrong.any():
            self.good &= ~wrong
            self.reject_lines(self.lines[wrong], [reason])

    def table(self, columns: Mapping[str, Any]) -> Any:
        """Return the good rows of columns [n] as an Arrow table."""
        table = pa.table(dict(columns))
        return table if self.good.all() else table.filter(pa.array(self.good))

    def _filled(self, name: str, missing: float | None) -> NDArray[Any]:
        values = self.values[name]
        if missing is None and values.null_count:
            self.reject(values.is_null().to_numpy(zero_copy_only=False), f"{name} is missing")
        return np.array(values.fill_null(missing or 0))


def block_of(rows: TextRows, format: TextFormat, reject: Reject) -> TextBlock:
    """Parse rows into their columns."""
    used = [number for number, kind in enumerate(format.columns.values()) if kind != SKIP]
    lines, columns = texts_of(rows, format, len(format.columns), used, reject)
    block = TextBlock(format, lines, reject, {})
    for number, texts in zip(used, columns, strict=True):
        name, kind = list(format.columns.items())[number]
        if format.stripped:
            texts = pc.ascii_trim(texts, " ")
            texts = pc.if_else(pc.equal(pc.binary_length(texts), 0), None, texts)
        block.values[name], flaws = values_of(kind, name, texts)
        for wrong, reason in flaws:
            block.reject(wrong, reason)
    return block
