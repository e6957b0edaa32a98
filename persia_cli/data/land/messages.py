"""Messages as rows: a JSON object is one row, and an Arrow IPC stream is all rows of all its batches.

The columns are those of the first file. A message that has another column, or a value of another type, has a *flaw*;
a missing column is null. A number in a column of fractions is the nearest one.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa

from persia_cli.data.read.json_lines import parsed, schema_of
from persia_cli.errors import UserError, count, one_line

Form = Literal["json", "arrow"]
Reader = Callable[[Sequence[bytes], Any], Any]
"""A function from messages to the Arrow table of their rows, of a schema, or that of the messages themselves for None.

It raises MessageFlawError for the first message with a flaw, UserError for a column whose type is not known.
"""

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ELSEWHERE = "is not in the files so far; land these messages in another folder"


class MessageFlawError(Exception):
    """A message that cannot be rows: its place among those given, and why."""

    def __init__(self, place: int, text: str) -> None:
        super().__init__(text)
        self.place = place


def json_rows(messages: Sequence[bytes], schema: Any) -> Any:
    """Return a row for each message; see `Reader`."""
    if not messages:
        return (pa.schema([]) if schema is None else schema).empty_table()
    for place, message in enumerate(messages):
        try:
            _OBJECT.decode(message.decode())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            json_rows(messages[:place], schema)  # one before it may have another flaw
            raise MessageFlawError(place, f"it is no JSON object ({one_line(error)})") from error
    try:
        table = _parsed(messages, schema)
    except pa.ArrowException as error:
        # A beginning of the messages fails if the flaw is in it.
        place = bisect_left(range(len(messages)), True, key=lambda last: _fails(messages[: last + 1], schema))
        text = _flaw(messages[place], schema) if schema is not None else None
        raise MessageFlawError(place, text or one_line(error)) from error
    if schema is None:
        _require_types(table.schema, len(messages))
    return table


def _parsed(messages: Sequence[bytes], schema: Any) -> Any:
    """Return objects as rows of a schema, which is inferred for None; raises ArrowException."""
    text = b"\n".join(messages)
    schema = schema_of(parsed(text, None), text) if schema is None else schema
    return parsed(text, schema, "error").select(schema.names)


def _fails(messages: Sequence[bytes], schema: Any) -> bool:
    try:
        _parsed(messages, schema)
    except pa.ArrowException:
        return True
    return False


def _flaw(message: bytes, schema: Any) -> str | None:
    """Return why an object is no row of a schema; None if no column is the reason."""
    for name, value in _OBJECT.decode(message).items():
        if name not in schema.names:
            return f"column {name} {_ELSEWHERE}"
        if _fails([msgspec.json.encode({name: value})], schema):
            shown = bytes(value)[:40].decode(errors="replace")
            return f"column {name} has {shown}, and {schema.field(name).type} so far"
    return None


def _require_types(schema: Any, messages: int) -> None:
    """Raise UserError for a column whose type is not known, or without a column."""
    if not schema.names:
        raise UserError(
            f"the first {count(messages, 'message')} have no column; give the columns, such as --columns user:int64"
        )
    for field in schema:
        if _has_null_type(field.type):
            raise UserError(
                f"column {field.name} has no value in the first {messages:,} messages, so its type is not known; give "
                f"the columns, such as --columns {field.name}:int64"
            )


def _has_null_type(kind: Any) -> bool:
    return pa.types.is_null(kind) or any(_has_null_type(kind.field(at).type) for at in range(kind.num_fields))


def arrow_rows(messages: Sequence[bytes], schema: Any) -> Any:
    """Return the rows of all batches of each message; see `Reader`."""
    tables = []
    for place, message in enumerate(messages):
        try:
            table = _stream(message)
            if schema is None:
                schema = table.schema
                _require_types(schema, len(messages))
            # Missing columns become null, and other types are errors.
            tables.append(pa.concat_tables([schema.empty_table(), table], promote_options="default"))
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise MessageFlawError(place, one_line(error)) from error
        if len(tables[-1].schema) > len(schema):
            raise MessageFlawError(place, f"column {tables[-1].schema.names[len(schema)]} {_ELSEWHERE}")
    return pa.concat_tables(tables)


def _stream(message: bytes) -> Any:
    """Return all batches of a message, texts of dictionaries as texts, without metadata."""
    with pa.ipc.open_stream(message) as reader:
        table = reader.read_all()
    kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in table.schema.types]
    return table.cast(pa.schema(list(map(pa.field, table.column_names, kinds))))


READERS: dict[Form, Reader] = {"json": json_rows, "arrow": arrow_rows}


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
