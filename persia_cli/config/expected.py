"""What the schema says about a key: where a key path leads, what it expects in words, which keys there are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from persia_cli.config.schema import Node
from persia_cli.config.schema.embedding import parse_bytes

_ONE = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_MANY = {int: "whole numbers", float: "numbers", str: "texts", bool: "true or false"}
_BOUNDS = ((Gt, "gt", "above"), (Ge, "ge", "of at least"), (Lt, "lt", "below"), (Le, "le", "at most"))


@dataclass(frozen=True)
class Place:
    """Where a key path leads in the schema."""

    path: str
    """The path as a user writes it, e.g. `dataset.sparse[3].pooling`."""
    annotation: Any
    """Type at the end of the path; None where the path leads nowhere."""
    rivals: list[type[Node]]
    """The other kinds of the config class that the last key belongs to."""
    values: Any
    """The user's values of that class; None where there are none."""


def follow(root: type[Node], location: Sequence[str | int], values: Any) -> Place:
    """Follow a pydantic error location, dropping the tags of unions that it contains."""
    annotation: Any = root
    path, holder = "", None
    rivals: list[type[Node]] = []
    for part in location:
        variants = nodes(annotation)
        if isinstance(part, int):
            path += f"[{part}]"
            holder, annotation = values, _element(annotation)
        elif len(variants) > 1:
            annotation = next((variant for variant in variants if part in kinds(variant)), None)
            rivals = [variant for variant in variants if variant is not annotation]
            continue
        elif variants:
            path += f".{part}" if path else part
            holder = values
            field = variants[0].model_fields.get(part)
            annotation = _whole(field) if field else None
        elif get_origin(annotation) is dict:
            path += f".{part}"
            holder, annotation = values, _element(annotation)
        else:
            continue
        values = _inside(values, part)
    return Place(path, annotation, rivals, holder)


def nodes(annotation: Any) -> list[type[Node]]:
    """Return the config classes that a value of this type may be an instance of."""
    if isinstance(annotation, type) and issubclass(annotation, Node):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, UnionType):
        arguments = get_args(annotation)
        arguments = arguments[:1] if get_origin(annotation) is Annotated else arguments
        return [node for argument in arguments for node in nodes(argument)]
    return []


def expectation(annotation: Any, many: bool = False) -> str:
    """Say in words what a value of this type looks like."""
    metadata, annotation = _bare(annotation)
    if any(isinstance(item, BeforeValidator) and item.func is parse_bytes for item in metadata):
        return "a size such as 512MiB or 2GiB"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _ONE:
        return f"{(_MANY if many else _ONE)[annotation]} {' and '.join(_bounds(metadata))}".rstrip()
    if origin is Literal:
        return any_of(arguments)
    if len(nodes(annotation)) > 1:
        return f"keys with kind: {any_of(kinds(annotation), 'or')}"
    if origin in (Union, UnionType):
        parts = [expectation(argument, many) for argument in arguments if argument is not NoneType]
        return " or ".join([*dict.fromkeys(parts), *(["null"] if NoneType in arguments else [])])
    if origin is tuple:
        empty = ", not empty" if any(isinstance(item, MinLen) for item in metadata) else ""
        return f"a list of {expectation(arguments[0], many=True)}{empty}"
    if found := nodes(annotation):
        return f"{'groups of keys' if many else 'keys'} ({', '.join(found[0].model_fields)})"
    return "names with values" if origin is dict else "any value"


def any_of(items: Sequence[Any], last: str = "or") -> str:
    """Join choices for a sentence: `a`, `a or b`, `a, b or c`."""
    *most, end = map(str, items)
    return f"{', '.join(most)} {last} {end}" if most else end


def keys(root: type[Node], values: Any = None, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key path below a config class with its field; of a union, the kind chosen in `values` or all."""
    for name, field in root.model_fields.items():
        yield prefix + name, field
        below = values.get(name) if isinstance(values, Mapping) else None
        chosen = kind_of(below)
        for node in nodes(_whole(field)):
            if chosen is None or chosen in kinds(node) or not kinds(node):
                yield from keys(node, below, f"{prefix}{name}.")


def kind_of(values: Any) -> str | None:
    """Return the `kind:` that values name."""
    kind = values.get("kind") if isinstance(values, Mapping) else None
    return kind if isinstance(kind, str) else None


def kinds(annotation: Any) -> list[str]:
    """Return the kinds that a config class, or a union of them, offers."""
    fields = [node.model_fields.get("kind") for node in nodes(annotation)]
    return [kind for field in fields if field for kind in get_args(field.annotation)]


def choices(annotation: Any) -> list[str]:
    """Return the texts a value may be chosen from; empty where it is not a choice."""
    _, annotation = _bare(annotation)
    return [str(choice) for choice in get_args(annotation)] if get_origin(annotation) is Literal else []


def field_expectation(field: FieldInfo) -> str:
    """Say in words what a field expects."""
    return expectation(_whole(field))


def _whole(field: FieldInfo) -> Any:
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def _element(annotation: Any) -> Any:
    """Return the type of a list's elements or of a mapping's values."""
    _, annotation = _bare(annotation)
    if get_origin(annotation) in (Union, UnionType):
        annotation = next((a for a in get_args(annotation) if get_origin(a) in (tuple, dict)), None)
    arguments = get_args(annotation)
    if not arguments:
        return None
    return arguments[1] if get_origin(annotation) is dict else arguments[0]


def _bare(annotation: Any) -> tuple[list[Any], Any]:
    """Split `Annotated[int, Gt(0)]` into its metadata and its bare type."""
    metadata: list[Any] = []
    while get_origin(annotation) is Annotated:
        annotation, *outer = get_args(annotation)
        metadata += [item for entry in outer for item in (entry.metadata if isinstance(entry, FieldInfo) else [entry])]
    return metadata, annotation


def _bounds(metadata: list[Any]) -> list[str]:
    """Say bounds in words, e.g. `from 1` `to 1024`."""
    found = [(word, getattr(item, key)) for item in metadata for bound, key, word in _BOUNDS if type(item) is bound]
    return [f"{word} {number if number < 2**53 else f'2^{int(number).bit_length() - 1}'}" for word, number in found]


def _inside(values: Any, part: str | int) -> Any:
    if isinstance(values, Mapping):
        return values.get(part)
    if isinstance(values, Sequence) and not isinstance(values, str) and isinstance(part, int) and part < len(values):
        return values[part]
    return None
