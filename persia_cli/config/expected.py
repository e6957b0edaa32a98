"""Questions to the schema: the field at a key path, its expected value as text, and the list of keys."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from persia_cli.config.schema import Node, Run
from persia_cli.config.schema.base import CHANGEABLE
from persia_cli.config.schema.dataset import tab_of
from persia_cli.config.schema.embedding import bytes_text, parse_bytes

_ONE = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_MANY = {int: "whole numbers", float: "numbers", str: "texts", bool: "true or false"}
_BOUNDS = ((Gt, "gt", "above"), (Ge, "ge", "of at least"), (Lt, "lt", "below"), (Le, "le", "at most"))
_NEAR = 10_000
"""Bounds beyond this are exceeded only by typos; messages leave them out unless they are exceeded."""

NAME = "[key]"
"""The end of pydantic's location of a mistake in a name, with which the path ends, rather than in its value."""


@dataclass(frozen=True)
class SchemaKey:
    """The schema's entry at a key path."""

    path: str
    """The path as a user writes it, e.g. `dataset.sparse[3].pooling`."""
    annotation: Any
    """Type at the end of the path; None if the path does not exist."""
    alternatives: list[type[Node]]
    """The other kinds of the config class that the last key belongs to."""
    values: Any
    """The user's values of that class; None if there are none."""
    owner: type[Node] | None
    """The class that has the field."""


def follow(root: type[Node], location: Sequence[str | int], values: Any) -> SchemaKey:
    """Follow a pydantic error location, dropping the tags of unions that it contains."""
    annotation: Any = root
    names: Any = None
    path, holder, owner = "", None, None
    alternatives: list[type[Node]] = []
    for part in location:
        variants = nodes(annotation)
        if part == NAME:
            annotation = names
            continue
        if isinstance(part, int):
            path += f"[{part}]"
            holder, annotation = values, _element(annotation)
        elif len(variants) > 1:
            annotation = next((variant for variant in variants if part in kinds(variant)), None)
            alternatives = [variant for variant in variants if variant is not annotation]
            continue
        elif variants and len(_members(annotation)) > 1:  # e.g. text or a group of keys: `part` names the one tried
            annotation = variants[0] if variants[0].__name__ in str(part) else annotation
            continue
        elif variants:
            path += f".{part}" if path else part
            holder, owner = values, variants[0]
            field = owner.model_fields.get(part)
            annotation = _whole(field) if field else None
        elif get_origin(annotation) is dict:
            path += f".{part}"
            names = get_args(annotation)[0]
            holder, annotation = values, _element(annotation)
        else:
            continue
        values = _value_at(values, part)
    return SchemaKey(path, annotation, alternatives, holder, owner)


A_SIZE = "a size such as 512MiB or 2GiB"


def nodes(annotation: Any) -> list[type[Node]]:
    """Return the config classes that a value of this type may be an instance of."""
    if isinstance(annotation, type) and issubclass(annotation, Node):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, UnionType):
        arguments = get_args(annotation)
        arguments = arguments[:1] if get_origin(annotation) is Annotated else arguments
        return [node for argument in arguments for node in nodes(argument)]
    return []


def expectation(annotation: Any, many: bool = False, limits: bool = False) -> str:
    """Return a description of the values of this type; with `limits`, also the range of numbers."""
    metadata, annotation = _bare(annotation)
    if any(isinstance(item, BeforeValidator) and item.func is parse_bytes for item in metadata):
        return A_SIZE
    if annotation is str and any(isinstance(item, MaxLen) and item.max_length <= 2 for item in metadata):
        is_tab = any(isinstance(item, BeforeValidator) and item.func is tab_of for item in metadata)
        return "one or two characters or the word tab" if is_tab else "one character"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _ONE:
        return f"{(_MANY if many else _ONE)[annotation]} {' and '.join(_bounds(metadata, limits))}".rstrip()
    if origin is Literal:
        return any_of(choices(annotation))
    if len(nodes(annotation)) > 1 and (found := kinds(annotation)):
        return f"keys with kind: {any_of(found, 'or')}"
    if origin in (Union, UnionType):
        parts = [expectation(argument, many, limits) for argument in arguments if argument is not NoneType]
        return " or ".join([*dict.fromkeys(parts), *(["null"] if NoneType in arguments else [])])
    if origin is tuple:
        empty = ", not empty" if any(isinstance(item, MinLen) for item in metadata) else ""
        return f"a list of {expectation(arguments[0], many=True, limits=limits)}{empty}"
    if classes := nodes(annotation):
        return f"{'groups of keys' if many else 'keys'} ({', '.join(classes[0].model_fields)})"
    return "names with values" if origin is dict else "any value"


def any_of(items: Sequence[Any], last: str = "or") -> str:
    """Join choices for a sentence: `a`, `a or b`, `a, b or c`."""
    *most, end = map(str, items)
    return f"{', '.join(most)} {last} {end}" if most else end


def keys(
    root: type[Node], values: Any = None, prefix: str = "", members: bool = False
) -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key path below a config class with its field; for a union, the kind chosen in `values` or all.

    With `members` the keys of elements of lists and of what users name follow, as in `embedding.tables.NAME.dim`.
    """
    for name, field in root.model_fields.items():
        yield prefix + name, field
        below = values.get(name) if isinstance(values, Mapping) else None
        chosen = kind_of(below)
        for between, node in classes_below(field, members):
            if between:
                yield from keys(node, None, f"{prefix}{name}{between}.", members)
            elif chosen is None or chosen in kinds(node) or not kinds(node):
                yield from keys(node, below, f"{prefix}{name}.", members)


def classes_below(field: FieldInfo, members: bool = True) -> Iterator[tuple[str, type[Node]]]:
    """Yield the config classes that a field holds, each after the part of the keys between: "", "[]" or ".NAME".

    Without `members` those of elements of lists, and of what users name, are left out.
    """
    annotation = _whole(field)
    yield from (("", node) for node in nodes(annotation))
    if not members:
        return
    between = ".NAME" if get_origin(_container(annotation)) is dict else "[]"
    yield from ((between, node) for node in nodes(_element(annotation)))


def is_changeable(key: str) -> bool:
    """Return True if a resumed run may give this key another value: it or a group that it is in is `Changeable`."""
    parts = key.split(".")
    return any(
        len(parts) >= len(group) and all(wanted in (part, "NAME") for wanted, part in zip(group, parts, strict=False))
        for group in _changeable()
    )


@cache
def _changeable() -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(key.split(".")) for key, field in keys(Run, members=True) if CHANGEABLE in field.metadata)


def kind_of(values: Any) -> str | None:
    """Return the `kind:` named in values."""
    kind = values.get("kind") if isinstance(values, Mapping) else None
    return kind if isinstance(kind, str) else None


def kinds(annotation: Any) -> list[str]:
    """Return the kinds of a config class, or of a union of them."""
    fields = [node.model_fields.get("kind") for node in nodes(annotation)]
    return [kind for field in fields if field for kind in get_args(field.annotation)]


def choices(annotation: Any) -> list[str]:
    """Return the texts that a value may be chosen from; empty if it is not a choice."""
    literals = [member for member in _members(annotation) if get_origin(member) is Literal]
    return ["true" if choice is True else str(choice) for literal in literals for choice in get_args(literal)]


def field_expectation(field: FieldInfo) -> str:
    """Return a description of the values that a field expects."""
    return expectation(_whole(field))


def field_default(field: FieldInfo) -> str:
    """Return the default of a field, as the end of a clause; empty for a group of keys."""
    if field.is_required():
        return "" if nodes(_whole(field)) else "; has to be given"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Node):
        return ""
    names = {None: "null", True: "true", False: "false", "": '""'}
    value = list(value) if isinstance(value, tuple) else as_people_write(field, value)
    return f"; default {names[value] if isinstance(value, str | bool | None) and value in names else value}"


def as_people_write(field: FieldInfo, value: Any) -> Any:
    """Return the value of a field as people write it: a number of bytes as `1GiB`, others unchanged."""
    return bytes_text(value) if isinstance(value, int) and A_SIZE in field_expectation(field) else value


def takes(field: FieldInfo, value: object) -> bool:
    """Return True if a field may hold a value with the structure of `value`: keys with values, a list, or neither.

    Text is always accepted, since it may name anything.
    """
    members = [_bare(member)[1] for member in _members(field.annotation)]
    keys_fit = any(get_origin(member) is dict or nodes(member) for member in members)
    if isinstance(value, Mapping):
        return keys_fit
    if isinstance(value, list | tuple):
        return any(get_origin(member) is tuple for member in members)
    is_plain = any(get_origin(member) not in (dict, tuple) and not nodes(member) for member in members)
    return value is None or isinstance(value, str) or is_plain


def _whole(field: FieldInfo) -> Any:
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def _members(annotation: Any) -> list[Any]:
    """Return the types of a union without null; for another type, the type itself."""
    _, annotation = _bare(annotation)
    if get_origin(annotation) not in (Union, UnionType):
        return [annotation]
    return [member for member in get_args(annotation) if member is not NoneType]


def _element(annotation: Any) -> Any:
    """Return the type of a list's elements or of a mapping's values."""
    annotation = _container(annotation)
    arguments = get_args(annotation)
    if not arguments:
        return None
    return arguments[1] if get_origin(annotation) is dict else arguments[0]


def _container(annotation: Any) -> Any:
    """Return the list or the mapping that a value may be, if it may be one."""
    members = [_bare(member)[1] for member in _members(annotation)]
    return next((member for member in members if get_origin(member) in (tuple, dict)), None)


def _bare(annotation: Any) -> tuple[list[Any], Any]:
    """Split `Annotated[int, Gt(0)]` into its metadata and its bare type."""
    metadata: list[Any] = []
    while get_origin(annotation) is Annotated:
        annotation, *outer = get_args(annotation)
        metadata += [item for entry in outer for item in (entry.metadata if isinstance(entry, FieldInfo) else [entry])]
    return metadata, annotation


def _bounds(metadata: list[Any], limits: bool) -> list[str]:
    """Return bounds as text, e.g. `above 0`, `at most 1024`; very large ones only with `limits`."""
    bounds = [(word, getattr(item, key)) for item in metadata for bound, key, word in _BOUNDS if type(item) is bound]
    return [f"{word} {_spell(number)}" for word, number in bounds if limits or abs(number) <= _NEAR]


def _spell(number: float) -> str:
    """Write a bound: powers of two and of ten as such, other large numbers with commas."""
    if isinstance(number, float):
        return f"{number:,.0f}" if 10_000 <= abs(number) < 1e15 else f"{number:g}"
    if number >= 2**53 and number & (number - 1) == 0:
        return f"2^{number.bit_length() - 1}"
    return str(number) if number < 10_000 else f"{number:,}"


def _value_at(values: Any, part: str | int) -> Any:
    if isinstance(values, Mapping):
        return values.get(part)
    if isinstance(values, Sequence) and not isinstance(values, str) and isinstance(part, int) and part < len(values):
        return values[part]
    return None
