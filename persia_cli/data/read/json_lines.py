"""JSON Lines to tables: one object per line, its keys are columns; numbers stay numbers, and strings strings."""

import codecs
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import json as arrow_json

from persia_cli.data.read.bad_rows import Reject, ignore
from persia_cli.data.read.text import MARK, Layout, TextFile, TextRows, read_rows
from persia_cli.errors import DataError


def read_json_lines(file: TextFile, reject: Reject) -> Iterator[Any]:
    """Yield a file's rows as Arrow tables of one schema; lines that are not a JSON object are rejected.

    Reads the file twice. Raises DataError for a column with values of several types.
    """
    _refuse_array(file)
    schema = pa.schema([])
    for text, table in _tables(file, None, ignore):
        block_schema = schema_of(table, text)
        try:
            schema = pa.unify_schemas(
                [_widened(schema, block_schema), _widened(block_schema, schema)], promote_options="permissive"
            )
        except pa.ArrowException as error:
            raise _mixed(file.path, error) from error
    for _, table in _tables(file, schema, reject):
        yield table.select(schema.names).cast(schema)


def _refuse_array(file: TextFile) -> None:
    """Raise DataError for a file that is one JSON array."""
    with TextFile(file.path, filesystem=file.filesystem).open() as stream:
        if stream.read(1 << 12).removeprefix(MARK).lstrip().startswith((b"[{", b"[\n", b"[ ", b"[\r")):
            raise DataError(
                f"{file.path}: this is a JSON array, and JSON Lines are read, one object a line; convert it, as "
                "jq -c '.[]' data.json > data.jsonl does"
            )


def json_lines(file: TextFile) -> Iterator[NDArray[np.int64]]:
    """Yield the lines of the rows that `read_json_lines` yields."""
    return (rows.lines[:-1][_are_objects(rows)] for rows in read_rows(file, Layout(), ignore))


def _tables(file: TextFile, schema: Any, reject: Reject) -> Iterator[tuple[bytes, Any]]:
    """Yield blocks of lines, each with the table of its rows."""
    for rows in read_rows(file, Layout(), reject):
        text, table = rows.data[: rows.starts[-1]], None
        with suppress(pa.ArrowException, UnicodeDecodeError):
            codecs.utf_8_decode(text, "strict", True)  # Arrow does not check this
            table = parsed(text, schema)
        if table is None or table.num_rows != np.count_nonzero(np.diff(rows.starts) > 1):  # not one object a line
            good = _are_objects(rows)
            text = rows.joined(good)
            wrong = [row for row in np.flatnonzero(~good).tolist() if rows.text(row)]
            if wrong:
                reject(rows.lines[wrong], [f"not a JSON object: {rows.text(row)}" for row in wrong])
            try:
                table = parsed(text, schema) if text else (schema or pa.schema([])).empty_table()
            except pa.ArrowException as error:
                raise _mixed(file.path, error, rows.lines[:-1][good]) from error
        yield text, table


def _are_objects(rows: TextRows) -> NDArray[np.bool_]:
    """Return True for each line that is a JSON object."""
    good = np.zeros(len(rows.fields), np.bool_)
    for row, (start, stop) in enumerate(zip(rows.starts[:-1], rows.starts[1:], strict=True)):
        with suppress(ValueError, RecursionError):
            good[row] = isinstance(json.loads(rows.data[start:stop]), dict)
    return good


def parsed(text: bytes, schema: Any, others: str = "infer") -> Any:
    """Return objects as an Arrow table; fields that a schema lacks are inferred, or as `others` says.

    Raises ArrowException for text that is none, and for values of other kinds; encodings are not checked.
    """
    options = arrow_json.ParseOptions(schema, newlines_in_values=False, unexpected_field_behavior=others)
    reading = arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    return arrow_json.read_json(pa.BufferReader(text), reading, options)


def schema_of(table: Any, text: bytes) -> Any:
    """Return the schema that the columns of objects have, given their text and the table that Arrow infers."""
    return pa.schema([pa.field(field.name, _kind_of(field, table, text)) for field in table.schema])


def _kind_of(field: Any, table: Any, text: bytes) -> Any:
    """Return a column's type: strings for times that Arrow infers, since other rows may hold other strings.

    It is uint64 for integers beyond int64, which Arrow would round.
    """
    column, is_list = table.column(field.name), pa.types.is_list(field.type)
    kind = field.type.value_type if is_list else field.type
    if pa.types.is_temporal(kind):
        kind = pa.string()
    elif kind == pa.float64() and (pc.max(pc.list_flatten(column) if is_list else column).as_py() or 0) >= 2.0**63:
        large = pa.list_(pa.uint64()) if is_list else pa.uint64()
        with suppress(pa.ArrowException):
            parsed(text, pa.schema([(field.name, large)]), "ignore")
            kind = pa.uint64()
    return pa.list_(kind) if is_list else kind


def _widened(schema: Any, other: Any) -> Any:
    """Return a schema with uint64 in place of int64 where `other` has uint64; a negative number fails later."""
    wide = {pa.int64(): pa.uint64(), pa.list_(pa.int64()): pa.list_(pa.uint64())}
    large = {(feature.name, feature.type) for feature in other}
    kinds = [(field.name, wide.get(field.type, field.type)) for field in schema]
    return pa.schema(
        [kind if kind in large else (field.name, field.type) for kind, field in zip(kinds, schema, strict=True)]
    )


def _mixed(path: str, error: Exception, lines: Any = ()) -> DataError:
    """Return the error of a column that holds values of several types; `lines` are those that were read."""
    text = " ".join(str(error).split()).removesuffix(".")
    row = re.search(r"in row (\d+)", text)
    if row and int(row[1]) < len(lines):
        text = text.replace(row[0], f"in line {lines[int(row[1])]:,}")
    return DataError(f"{path}: a column has values of several types ({text}); write numbers or strings alone in each")
