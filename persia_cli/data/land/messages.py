"""Messages as rows: a JSON object is one row, and an Arrow IPC stream is all rows of all its batches.

The columns are those of the first file. A message that has another column, or a value of another type, has a *flaw*;
a missing column is null.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec
import pyarrow as pa

from persia_cli.errors import UserError, count, one_line

Form = Literal["json", "arrow"]

_CHUNK = 1 << 14
"""JSON messages that are Python objects at a time."""
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_ERRORS = (pa.ArrowException, OverflowError, ValueError, TypeError)


class MessageFlawError(Exception):
    """A message that cannot be rows: its place among those given, and why."""

    def __init__(self, place: int, text: str) -> None:
        super().__init__(text)
        self.place = place


class Messages(Protocol):
    """A format of messages."""

    def rows(self, message: bytes) -> int:
        """Return the number of rows of a message, 1 for one that may have a flaw."""

    def table(self, messages: Sequence[bytes], schema: Any) -> Any:
        """Return the rows of messages as an Arrow table of this schema, that of the messages themselves for None.

        Raises MessageFlawError, UserError for a column whose type is not known.
        """


class JsonMessages:
    """Messages that are one JSON object each."""

    def rows(self, message: bytes) -> int:
        return 1

    def table(self, messages: Sequence[bytes], schema: Any) -> Any:
        chunks = range(0, len(messages), _CHUNK)
        if schema is None:
            schema = self._schema(messages)
        tables = [self._chunk(messages, first, schema) for first in chunks]
        return pa.concat_tables(tables)

    def _schema(self, messages: Sequence[bytes]) -> Any:
        """Return the columns of messages by all their values."""
        found = pa.schema([])
        for first in range(0, len(messages), _CHUNK):
            rows = _objects(messages, first)
            try:
                inferred = pa.schema([pa.field(name, pa.array(column).type) for name, column in _columns(rows).items()])
                found = pa.unify_schemas([found, inferred], promote_options="permissive")
            except _ERRORS as error:
                names = _columns(rows)
                for place, row in enumerate(rows):
                    for name, value in row.items():
                        _require_same_kind(name, value, names[name], first + place)
                raise UserError(f"the messages have columns of several types: {one_line(error)}") from error
        if not found.names:
            raise UserError(
                f"the first {count(len(messages), 'message')} have no column; give the columns, such as "
                "--columns user:int64"
            )
        for field in found:
            if _has_null_type(field.type):
                raise UserError(
                    f"column {field.name} has no value in the first {len(messages):,} messages, so its type is not "
                    f"known; give the columns, such as --columns {field.name}:int64"
                )
        return found

    def _chunk(self, messages: Sequence[bytes], first: int, schema: Any) -> Any:
        rows = _objects(messages, first)
        try:
            return _as_table(rows, schema)
        except _ERRORS as error:
            for place, row in enumerate(rows):
                try:
                    _as_table([row], schema)
                except _ERRORS as flaw:
                    raise MessageFlawError(first + place, one_line(flaw)) from error
            raise


def _objects(messages: Sequence[bytes], first: int) -> list[dict[str, Any]]:
    rows = []
    for place, message in enumerate(messages[first : first + _CHUNK]):
        try:
            rows.append(_OBJECT.decode(message))
        except msgspec.DecodeError as error:
            raise MessageFlawError(first + place, f"it is no JSON object ({one_line(error)})") from error
    return rows


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _require_same_kind(name: str, value: Any, column: Sequence[Any], place: int) -> None:
    """Raise MessageFlawError for a value whose kind is not that of a column's first one."""
    known = next((other for other in column if other is not None), None)
    alike = isinstance(value, int | float) and isinstance(known, int | float) and bool not in (type(value), type(known))
    if value is not None and not alike and type(value) is not type(known):
        raise MessageFlawError(place, f"column {name} has {value!r}, and before it {known!r}, of another type")


def _as_table(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """Return rows as a table; raises one of `_ERRORS` for other columns and types."""
    columns = _columns(rows)
    if unknown := [name for name in columns if name not in schema.names]:
        raise ValueError(f"column {unknown[0]} is not in the files so far; land these messages in another folder")
    nothing = [None] * len(rows)
    arrays = [_as_column(field, columns.get(field.name, nothing)) for field in schema]
    return pa.table(arrays, schema=schema)


def _as_column(field: Any, values: Sequence[Any]) -> Any:
    """Return values as an Arrow array; pyarrow would cut 1.5, make 1.0 of true and drop unknown keys."""
    if pa.types.is_uint64(field.type) and all(type(value) in (int, type(None)) for value in values):
        return pa.array(values, field.type)
    if pa.types.is_floating(field.type) and bool in map(type, values):
        raise ValueError(f"column {field.name} has true or false here and {field.type} in the files so far")
    found = pa.array(values)
    if found.type == field.type:
        return found
    try:
        fits = pa.types.is_integer(found.type) and pa.types.is_integer(field.type)
        both = [pa.schema([field.with_nullable(True)]), pa.schema([pa.field(field.name, found.type)])]
        fits = fits or pa.unify_schemas(both, promote_options="permissive").field(0).type == field.type
    except pa.ArrowException:
        fits = False
    if not fits:
        raise ValueError(f"column {field.name} has {found.type} here and {field.type} in the files so far")
    return pa.array(values, field.type)


def _has_null_type(kind: Any) -> bool:
    if pa.types.is_null(kind):
        return True
    return any(_has_null_type(kind.field(number).type) for number in range(kind.num_fields))


class ArrowMessages:
    """Messages that are Arrow IPC streams."""

    def rows(self, message: bytes) -> int:
        try:
            return int(_stream(message).num_rows)
        except _ERRORS:
            return 1  # `table` names the flaw

    def table(self, messages: Sequence[bytes], schema: Any) -> Any:
        tables = []
        for place, message in enumerate(messages):
            try:
                table = _stream(message)
                schema = table.schema if schema is None else schema
                tables.append(_with_columns(table, schema))
            except _ERRORS as error:
                raise MessageFlawError(place, one_line(error)) from error
        return pa.concat_tables(tables)


def _stream(message: bytes) -> Any:
    """Return all batches of a message, texts of dictionaries as texts, without metadata."""
    with pa.ipc.open_stream(message) as reader:
        table = reader.read_all()
    kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in table.schema.types]
    return table.cast(pa.schema(list(map(pa.field, table.column_names, kinds))))


def _with_columns(table: Any, schema: Any) -> Any:
    if unknown := [name for name in table.column_names if name not in schema.names]:
        raise ValueError(f"column {unknown[0]} is not in the files so far; land these messages in another folder")
    if len(set(table.column_names)) < table.num_columns:
        raise ValueError("a column is there twice")
    arrays = []
    for field in schema:
        if field.name not in table.column_names:
            arrays.append(pa.nulls(table.num_rows, field.type))
        elif (column := table.column(field.name)).type != field.type:
            raise ValueError(f"column {field.name} has {column.type} here and {field.type} in the files so far")
        else:
            arrays.append(column)
    return pa.table(arrays, schema=schema)


FORMS: dict[Form, Messages] = {"json": JsonMessages(), "arrow": ArrowMessages()}


def columns_of(text: str) -> Any:
    """Return the Arrow schema of `user:int64,tags:string[]`; raises UserError."""
    fields = []
    for part in text.split(","):
        name, sign, kind = part.strip().rpartition(":")
        try:
            plain = pa.type_for_alias(kind.removesuffix("[]"))
        except (ValueError, KeyError):
            plain = None
        if not sign or not name or plain is None:
            raise UserError(
                f"--columns: {part.strip()!r} is not NAME:TYPE, such as user:int64, price:double or tags:string[]"
            )
        fields.append(pa.field(name, pa.list_(plain) if kind.endswith("[]") else plain))
    return pa.schema(fields)
