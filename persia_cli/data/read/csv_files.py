"""CSV to tables; the type of a column is found from the whole file.

A column holds integers if every field is an integer as usually written (7, not 07), or if every field is one with `.0`,
as pandas writes a column of integers with missing values; else numbers if every field is one; else true and false if
every field is one of these; else dates if every field is one (2024-01-31), or timestamps (2024-01-31T12:30:00Z, all
with a zone or all without); else text. Fields that are null markers are left out of this.
Blanks around a number, a null marker or a column's name do not belong to it; blanks around text do.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import CsvFormat
from persia_cli.data.read.bad_rows import Reject, ignore
from persia_cli.data.read.text import BLANK, CONVERT, Layout, TextFile, header_of, not_utf8, read_rows, texts_of
from persia_cli.errors import DataError

_BLANKS = " \t"
_SHOWN = 5
"""Names of a header that a message shows."""
_GUESSED = (",", ";", "\t", "::", "|")
_LOOKED_AT = 1000
"""Rows that a delimiter is guessed from."""
WITH_ZERO = {b"persia.written": b"1.0"}
"""The mark of a column of integers that are written with `.0`."""
_INTEGER = r"^[ \t]*(?:0|-?[1-9][0-9]*)[ \t]*$"
_WHOLE = r"^[ \t]*(?:0|-?[1-9][0-9]*)\.0[ \t]*$"
_FRACTION = r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
NUMBER = rf"^[ \t]*(?:{_FRACTION}|-?(?:nan|NaN|inf|Infinity))[ \t]*$"
"""The fields that are numbers."""
_BOOLEAN = r"^(?:true|True|TRUE|false|False|FALSE)$"
_NUMBERS = (
    (_INTEGER, pa.int64()),
    (_INTEGER, pa.uint64()),
    (_WHOLE, pa.int64()),
    (NUMBER, pa.float64()),
    (_BOOLEAN, pa.bool_()),
)
Held = Literal["integer", "number", "boolean"]
_HELD: dict[Held, int] = {"integer": 3, "number": 4, "boolean": 5}
"""The first of _NUMBERS that a column of requests may have; ids are integers, as those of a file are."""
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"
_KINDS = (
    *_NUMBERS,
    (rf"^{_DATE}$", pa.date32()),
    (rf"^{_DATE}{_CLOCK}$", pa.timestamp("us")),
    (rf"^{_DATE}{_CLOCK}(?:Z|[+-][0-9]{{2}}:?[0-9]{{2}})$", pa.timestamp("us", "UTC")),
)
"""The types a column may have, the narrowest first: the pattern of its fields, and the Arrow type they must fit."""


def layout_of(path: str, form: CsvFormat) -> Layout:
    """Return the layout of a CSV file; the usual delimiter is a tab for files named .tsv, else a comma."""
    delimiter = form.delimiter or ("\t" if ".tsv" in path.rpartition("/")[2].lower() else ",")
    return Layout(
        delimiter=delimiter,
        quote=form.quote,
        spanning=True,
        header=form.header is True,
        blank_lines=True,
        nulls=(),
    )


def read_csv(file: TextFile, form: CsvFormat, reject: Reject, scratch: Path) -> Iterator[Any]:
    """Yield a file's rows as Arrow tables of one schema, with their texts in a file `scratch` meanwhile.

    Raises DataError for a file that is not CSV.
    """
    names = column_names(file, form)
    if unknown := sorted(set(form.text) - set(names)):
        raise DataError(f"dataset.csv.text={unknown}: {file.path} has no such column; it has {', '.join(names)}")
    left = [[] if name in form.text else list(_KINDS) for name in names]
    filled = [False for _ in names]
    texts = pa.schema([(str(number), pa.string()) for number in range(len(names))])
    with pa.ipc.new_stream(str(scratch), texts, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for _, columns in _texts(file, form, len(names), reject):
            writer.write(pa.record_batch(columns, schema=texts))
            for number, column in enumerate(columns):
                if column.null_count < len(column):
                    filled[number] = True
                    left[number] = _narrowed(left[number], column.drop_null())
    kinds = [known[0][1] if known else pa.string() for known in left]
    types = [kind if has_values else pa.null() for kind, has_values in zip(kinds, filled, strict=True)]
    marks = [WITH_ZERO if known and known[0][0] == _WHOLE else None for known in left]
    schema = pa.schema(
        [pa.field(*name_and_type, metadata=mark) for *name_and_type, mark in zip(names, types, marks, strict=True)]
    )
    with pa.OSFile(str(scratch)) as source, pa.ipc.open_stream(source) as batches:
        for batch in batches:
            yield pa.Table.from_arrays(
                [_cast(*column_and_type) for column_and_type in zip(batch, types, strict=True)], schema=schema
            )
    yield schema.empty_table()


def guessed_delimiter(file: TextFile, form: CsvFormat) -> str | None:
    """Return the delimiter that divides the first rows of a file best; None if its own one does, or if none does.

    Its own one does not if it leaves the header whole or its quotes open, or if the first rows have different numbers
    of fields where another one divides all of them, and the header more often.
    """
    layout = layout_of(file.path, form)
    divisions = {
        delimiter: _divided(file, replace(layout, delimiter=delimiter)) for delimiter in (layout.delimiter, *_GUESSED)
    }
    fields, is_regular = divisions[layout.delimiter]
    if fields > 1 and is_regular:
        return None
    others = {
        delimiter: known
        for delimiter, known in divisions.items()
        if known[0] > max(fields, 1) and (fields < 2 or known[1])
    }
    return max(others, key=lambda delimiter: others[delimiter][::-1], default=None)


def _divided(file: TextFile, layout: Layout) -> tuple[int, bool]:
    """Return the number of fields of a file's header, and True if as many are in each of the first rows."""
    try:
        fields = len(header_of(file, layout))
        rows = next(read_rows(TextFile(file.path, filesystem=file.filesystem), layout, ignore))
    except (DataError, StopIteration):  # such as a quote that is not closed before another delimiter
        return 0, False
    return fields, all(
        not flaw and number == fields
        for number, flaw in zip(rows.fields[:_LOOKED_AT].tolist(), rows.flaws[:_LOOKED_AT].tolist(), strict=True)
        if flaw != BLANK
    )


def header_flaw(file: TextFile, form: CsvFormat) -> str | None:
    """Return a sentence on a header that names no columns, or one of them twice; None for others."""
    names = column_names(file, form)
    numbers = [name for name in names if re.fullmatch(NUMBER, name)]
    if form.header is True and numbers and not _are_names(numbers):
        numbered = ",".join(f"c{number}" for number in range(len(names)))
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        return f"the first line looks like data ({shown}); name the columns: 'dataset.csv.header=[{numbered}]'"
    if twice := next((name for name in names if names.count(name) > 1), None):
        return f"there are several columns {twice or 'without a name'}; give each a different name"
    return None


def _are_names(numbers: list[str]) -> bool:
    """Return True for consecutive integers, such as years, and for 0 or 1 alone, as pandas names columns."""
    if not all(re.fullmatch(r"[0-9]{1,9}", number) for number in numbers):
        return False
    first = int(numbers[0])
    return (len(numbers) > 1 or first < 2) and [*map(int, numbers)] == list(range(first, first + len(numbers)))


def without_markers(texts: Any, nulls: Sequence[str]) -> Any:
    """Return texts with null in place of null markers; blanks around a marker do not count."""
    markers = pa.array([marker.strip(_BLANKS) for marker in nulls], pa.string())
    return pc.if_else(pc.is_in(pc.utf8_trim(texts, _BLANKS), value_set=markers), None, texts)


def csv_lines(file: TextFile, form: CsvFormat) -> Iterator[NDArray[np.int64]]:
    """Yield the lines of the rows that `read_csv` yields."""
    return (lines for lines, _ in _texts(file, form, len(column_names(file, form)), ignore))


def column_names(file: TextFile, form: CsvFormat) -> list[str]:
    """Return the names of the columns of a file; raises DataError for a header that cannot be read."""
    if form.header is not True:
        return list(form.header)
    try:
        return [name.strip(_BLANKS) for name in header_of(file, layout_of(file.path, form))]
    except DataError as error:
        if (delimiter := guessed_delimiter(file, form)) is None:
            raise
        raise DataError(f"{error}, or set dataset.csv.delimiter={shown_delimiter(delimiter)}") from error


def shown_delimiter(delimiter: str) -> str:
    """Return a delimiter as settings take it."""
    return "tab" if delimiter == "\t" else f"'{delimiter}'"


def _texts(
    file: TextFile, form: CsvFormat, width: int, reject: Reject
) -> Iterator[tuple[NDArray[np.int64], list[Any]]]:
    """Yield the lines of some rows, and the texts of their columns, all of them UTF-8."""
    layout = layout_of(file.path, form)
    for rows in read_rows(file, layout, reject):
        lines, columns = texts_of(rows, layout, width, range(width), reject)
        for number in range(width):
            if (wrong := not_utf8(columns[number])) is not None:
                reject(lines[wrong], [f"field {number + 1} is not UTF-8; {CONVERT}"])
                lines = lines[~wrong]
                columns = [column.filter(pa.array(~wrong)) for column in columns]
        if lines.size:
            yield lines, [without_markers(column, form.nulls) for column in columns]


def _cast(texts: Any, kind: Any) -> Any:
    if kind == pa.string():
        return texts
    if pa.types.is_null(kind):
        return pa.nulls(len(texts))
    with suppress(pa.ArrowInvalid):
        return texts.cast(kind)
    trimmed = pc.utf8_trim(texts, _BLANKS)
    return (pc.replace_substring_regex(trimmed, r"\.0$", "") if pa.types.is_integer(kind) else trimmed).cast(kind)


def _narrowed(kinds: list[tuple[str, Any]], values: Any) -> list[tuple[str, Any]]:
    """Return the kinds that all values fit; what fits as an integer is a number, too."""
    fitting: list[tuple[str, Any]] = []
    for pattern, kind in kinds:
        if (fitting and pattern == NUMBER) or _fits(values, pattern, kind):
            fitting.append((pattern, kind))
    return fitting


def _fits(values: Any, pattern: str, kind: Any) -> bool:
    with suppress(pa.ArrowInvalid):
        return bool(pc.all(pc.match_substring_regex(values, pattern)).as_py()) and _cast(values, kind) is not None
    return False


def numbers_of(texts: Any, kind_of_column: Held) -> Any:
    """Return texts as the numbers that a column of such fields holds, of the narrowest type that fits all of them.

    If no type of those in `held` fits, they stay texts, without the blanks around them.
    """
    for pattern, kind in _NUMBERS[: _HELD[kind_of_column]]:
        if _fits(texts.drop_null(), pattern, kind):
            return _cast(texts, kind)
    return pc.utf8_trim(texts, _BLANKS)
