"""JSON Lines to tables: one object per line, its keys are columns; numbers stay numbers, and strings strings."""

import codecs
import json
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from persia_cli.data.read.csv_files import Open
from persia_cli.data.read.text_files import UnreadRows
from persia_cli.errors import DataError

_BLOCK_BYTES = 1 << 24


def read_json_lines(open_file: Open, name: str, unread: UnreadRows) -> Generator[Any, None, None]:
    """Yield a file's rows as Arrow tables of one schema; lines that are not a JSON object are added to `unread`.

    Reads the file twice. Raises DataError for a column with values of several types.
    """
    schema = pa.schema([])
    for first, block in _blocks(open_file):
        own = _without_times(_with_large_integers(_parsed(block, None, name, first, UnreadRows()), block))
        try:
            schema = pa.unify_schemas(_alike([schema, own]), promote_options="permissive")
        except pa.ArrowException as error:
            raise _mixed(name, error) from error
    for first, block in _blocks(open_file):
        table = _parsed(block, schema, name, first, unread)
        yield table.select(schema.names).cast(schema)


def _blocks(open_file: Open) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, each with the number of its first line, counted from 1."""
    first, rest = 1, b""
    with open_file() as stream:
        while more := bytes(stream.read(_BLOCK_BYTES)):
            whole, newline, rest = (rest + more).rpartition(b"\n")
            if newline:
                yield first, whole + newline
                first += whole.count(b"\n") + 1
    if rest.strip():
        yield first, rest


def _parsed(block: bytes, schema: Any, name: str, first: int, unread: UnreadRows) -> Any:
    options = arrow_json.ParseOptions(explicit_schema=schema, newlines_in_values=False)
    reading = arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    try:
        codecs.utf_8_decode(block, "strict", True)  # Arrow does not check this
        return arrow_json.read_json(pa.BufferReader(block), reading, options)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        good = _good_lines(block, first, unread)
        if sum(map(len, good.values())) == len(block):
            raise _mixed(name, error, good) from error
    text = b"".join(good.values())
    if not text.strip():
        return (schema or pa.schema([])).empty_table()
    try:
        return arrow_json.read_json(pa.BufferReader(text), reading, options)
    except pa.ArrowException as error:
        raise _mixed(name, error, good) from error


def _good_lines(block: bytes, first: int, unread: UnreadRows) -> dict[int, bytes]:
    """Return the lines that can be read, by their numbers."""
    good = {}
    for number, line in enumerate(block.split(b"\n"), first):
        try:
            is_good = not line.strip() or isinstance(json.loads(line), dict)
        except ValueError:
            is_good = False
        if is_good:
            good[number] = line + b"\n"
        else:
            unread.add(number, "not a JSON object", line.decode(errors="replace"))
    if block.endswith(b"\n"):  # split() gives an empty line after the last line end
        del good[number]
    return good


def _with_large_integers(table: Any, block: bytes) -> Any:
    """Return a table's schema with uint64 for integer columns with numbers beyond int64, which Arrow would round."""
    schema = table.schema
    for number, field in enumerate(schema):
        column = table.column(number)
        values = pc.list_flatten(column) if pa.types.is_list(field.type) else column
        if values.type != pa.float64() or not pc.any(pc.greater_equal(values, 2.0**63)).as_py():
            continue
        large = pa.list_(pa.uint64()) if pa.types.is_list(field.type) else pa.uint64()
        options = arrow_json.ParseOptions(
            explicit_schema=pa.schema([(field.name, large)]),
            newlines_in_values=False,
            unexpected_field_behavior="ignore",
        )
        reading = arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
        with suppress(pa.ArrowException):
            arrow_json.read_json(pa.BufferReader(block), reading, options)
            schema = schema.set(number, pa.field(field.name, large))
    return schema


def _alike(schemas: list[Any]) -> list[Any]:
    """Return schemas with uint64 in place of int64 where another has uint64; a negative number fails later."""
    both = (pa.uint64(), pa.list_(pa.uint64()))
    large = {field.name: field.type for schema in schemas for field in schema if field.type in both}
    narrow = (pa.int64(), pa.list_(pa.int64()))
    return [
        pa.schema([pa.field(each.name, large.get(each.name, each.type) if each.type in narrow else each.type)
                   for each in schema])
        for schema in schemas
    ]  # fmt: skip


def _without_times(schema: Any) -> Any:
    """Return a schema with strings in place of times that pyarrow has inferred: other rows may hold other strings."""
    return pa.schema([pa.field(field.name, _text_of_time(field.type)) for field in schema])


def _text_of_time(kind: Any) -> Any:
    if pa.types.is_list(kind):
        return pa.list_(_text_of_time(kind.value_type))
    return pa.string() if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind) else kind


def _mixed(name: str, error: Exception, lines: Mapping[int, bytes] | None = None) -> DataError:
    """Return the error of a column that holds values of several types; `lines` are those that were read."""
    text = " ".join(str(error).split()).removesuffix(".")
    rows = [number for number, line in (lines or {}).items() if line.strip()]
    row = re.search(r"in row (\d+)", text)
    if row and int(row[1]) < len(rows):
        text = text.replace(row[0], f"in line {rows[int(row[1])]:,}")
    return DataError(f"{name}: a column has values of several types ({text}); write numbers or strings alone in each")
