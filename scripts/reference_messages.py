"""The reference page of wire messages, from the messages themselves."""

import re
from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from persia_cli.wire.frames import BY_KIND
from persia_cli.wire.job_messages import Counters, IntervalMetrics, PhaseWork, ReplicaUsage
from persia_cli.wire.message import BatchId, Message, ProcessId, Sender, TableTotals, codec_of, dtype_of

HEAD = """# Messages

This page is generated from `persia_cli/wire/`. The [protocol](../protocol.md) explains how messages are sent and
checked. The kind is the first byte of a message. "Any server" is any role that answers requests.

"""
ARRAYS = """
## Fields, arrays and limits

A size in brackets with the same name is equal within one message, or within one feature group of it. `*` is any size.
The last column is the limit of a message: its header, the number of its arrays, and their bytes.

"""
PARTS_HEAD = """
## Structs in messages

"""
PARTS = (
    *(BatchId, Sender, ProcessId, TableTotals, *get_args(PhaseWork)),
    *(Counters, ReplicaUsage, IntervalMetrics),
)
"""Structs within messages, which the table lists after them."""
UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def page() -> str:
    """Return the page as Markdown."""
    kinds = [BY_KIND[number] for number in sorted(BY_KIND)]
    meanings = [(f"`{kind.KIND:#04x}`", f"`{kind.__name__}`", *_meaning(kind), _reply(kind)) for kind in kinds]
    contents = [(f"`{kind.__name__}`", _fields(kind), _arrays(kind), _limit(kind)) for kind in kinds]
    parts = [(f"`{part.__name__}`", _fields(part)) for part in PARTS]
    return (
        HEAD
        + _table(("kind", "message", "from → to", "meaning", "reply"), meanings)
        + ARRAYS
        + _table(("message", "fields", "arrays", "limit"), contents)
        + PARTS_HEAD
        + _table(("struct", "fields"), parts)
    )


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _meaning(kind: type[Message]) -> tuple[str, str]:
    """Return a message's sender and receiver, and its meaning, from the first paragraph of its docstring."""
    first = re.split(r"\n\s*\n", (kind.__doc__ or "").strip())[0]
    whom, _, what = " ".join(first.split()).partition(": ")
    return whom.replace("->", "→"), what[:1].upper() + what[1:]


def _reply(kind: type[Message]) -> str:
    return f"`{kind.REPLY.__name__}`" if kind.REPLY else "-"


def _fields(kind: type[msgspec.Struct]) -> str:
    fields = [field for field in msgspec.structs.fields(kind) if not codec_of(field.name, field.type)]
    return ", ".join(f"`{field.name}: {_type(field.type)}`" for field in fields) or "-"


def _type(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return _type(get_args(kind)[0])
    if get_origin(kind) in (dict, list, tuple):
        inner = ["..." if arg is ... else _type(arg) for arg in get_args(kind)]
        return f"{get_origin(kind).__name__}[{', '.join(inner)}]"
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if get_origin(kind) in (Union, UnionType):
        # A bar would end the cell of the table.
        return " or ".join(map(_type, get_args(kind)))
    return "None" if kind is type(None) else str(getattr(kind, "__name__", kind))


def _arrays(kind: type[msgspec.Struct]) -> str:
    fields = msgspec.structs.fields(kind)
    return "; ".join(_array(field.name, field.type) for field in fields if codec_of(field.name, field.type)) or "-"


def _array(name: str, declared: Any) -> str:
    """Return a field of arrays as the table has it: one array, a block, or several of either."""
    origin, args = get_origin(declared), get_args(declared)
    if origin is list:
        many = "for each feature group" if name == "groups" else "one or more"
        return f"{_array(name, args[0])}, {many}"
    if origin in (Union, UnionType):
        return f"{_array(name, args[0])} or None"
    if origin is Annotated:
        # The whole field as code: two sizes `*` would otherwise set the text between them in italics.
        dtype = dtype_of(args[0])
        assert dtype is not None
        return f"`{name}: {dtype.name}[{', '.join(args[1].split())}]`"
    hints = get_type_hints(declared, include_extras=True)
    return f"`{name}` ({'; '.join(_array(part, hints[part]) for part in declared._fields)})"


def _limit(kind: type[Message]) -> str:
    limit = kind.LIMIT
    header = f"{_size(limit.header)} header"
    arrays = f"{limit.arrays:,} array{'s' if limit.arrays > 1 else ''}"
    return f"{header}, {arrays}, {_size(limit.nbytes)}" if limit.arrays else header


def _size(nbytes: int) -> str:
    unit, size = next(unit for unit in UNITS if nbytes >= unit[1])
    return f"{nbytes // size} {unit}"
