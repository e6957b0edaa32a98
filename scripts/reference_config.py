"""The reference page of configuration keys, from the JSON Schema of the configuration."""

from collections.abc import Iterator
from typing import Any

from persia_cli.config.schema import Run
from scripts.reference_examples import example_of

Json = dict[str, Any]
HEAD = """# Configuration keys

This page is generated from the schema. `persia config show` prints the complete configuration of a command, and
`persia config list` the configurations and options that Persia ships with. An unknown key is an error.

A key without a default is *required*; the shipped configurations set it. In a key path, `NAME` is a name that you
choose, such as a table or a label, and `[]` is an element of a list. Sizes in bytes may have a unit: `512MiB`, `4GiB`.
A long example is cut; the example of a key with a default is that default.
"""
MAX_EXAMPLE = 40
"""Characters of an example."""
SIZES = ((2**30, "GiB"), (2**20, "MiB"))
MAX_BYTES = 2**60
"""The maximum of a size in bytes, which distinguishes it from other numbers."""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join(_Page(Run.model_json_schema()).lines()) + "\n"


class _Page:
    """The sections of a page; each union of kinds is described once, at its shortest key path."""

    def __init__(self, schema: Json) -> None:
        self._groups: Json = schema["properties"]
        self._required = set(schema["required"])
        self._classes: Json = schema["$defs"]
        self._paths: dict[tuple[str, ...], str] = {}
        """The kinds of a union -> key path at which they are described."""
        self._described: set[str] = set()
        for path, kinds in self._unions("", self._groups):
            known = self._paths.get(tuple(kinds.values()))
            if known is None or path.count(".") < known.count("."):
                self._paths[tuple(kinds.values())] = path

    def lines(self) -> Iterator[str]:
        """Yield the lines of the page."""
        yield HEAD
        single = {key: field for key, field in self._groups.items() if not (_names(field) or self._kinds(field))}
        yield "## Keys without a group\n"
        yield from self._table("", single, self._required)
        for key, field in self._groups.items():
            if key not in single:
                yield f"## {key}\n"
                if self._kinds(field):
                    yield f"{field['description']}\n"
                    yield from self._kinds_of(key, field)
                else:
                    yield from self._class(key, *_names(field))

    def _unions(self, prefix: str, fields: Json) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the key path of each union below some fields, with its kinds."""
        for key, field in fields.items():
            path = prefix + key + _suffix(field)
            if kinds := self._kinds(field):
                yield path, kinds
            for name in kinds.values() or _names(field):
                yield from self._unions(f"{path}.", self._classes[name]["properties"])

    def _class(self, path: str, name: str) -> Iterator[str]:
        """Yield the description of a class and its table, then the kinds of each union in it."""
        found = self._classes[name]
        yield f"{found['description']}\n"
        yield from self._table(f"{path}.", found["properties"], set(found.get("required", ())))

    def _table(self, prefix: str, fields: Json, required: set[str]) -> Iterator[str]:
        unions: dict[str, Json] = {}
        yield "| key | type | default | example | meaning |\n| --- | --- | --- | --- | --- |"
        yield from self._rows(prefix, fields, required, unions)
        yield ""
        for path, field in unions.items():
            if path == self._paths[tuple(self._kinds(field).values())]:
                yield from self._kinds_of(path, field)

    def _kinds_of(self, path: str, field: Json) -> Iterator[str]:
        kinds = {} if path in self._described else self._kinds(field)
        self._described.add(path)
        for kind, name in kinds.items():
            yield f"### {path}: {kind}\n"
            yield from self._class(path, name)

    def _rows(self, prefix: str, fields: Json, required: set[str], unions: dict[str, Json]) -> Iterator[str]:
        """Yield a row for each field and for the fields of the classes that it holds; collect the unions."""
        kind = fields.get("kind", {}).get("const")
        for key, field in fields.items():
            path = prefix + key + _suffix(field)
            names = _names(field)
            inner = self._classes[names[0]] if names else {}
            default = "required" if key in required else _default(field)
            meaning = field.get("description") or inner.get("description", "")
            example = _example(example_of(prefix + key, kind, field), field)
            yield f"| `{prefix}{key}` | {self._type(field, path)} | {default} | {example} | {_cell(meaning)} |"
            if self._kinds(field):
                unions[path] = field
            elif inner:
                yield from self._rows(f"{path}.", inner["properties"], set(inner.get("required", ())), unions)

    def _kinds(self, field: Json) -> dict[str, str]:
        """Return {kind: class} of a union that `kind` decides; empty for another type."""
        for part in _parts(field):
            if "discriminator" in part:
                return {kind: _name(ref) for kind, ref in part["discriminator"]["mapping"].items()}
        return {}

    def _type(self, field: Json, path: str) -> str:
        kinds = self._kinds(field)
        if not kinds:
            return _type(field)
        described = self._paths[tuple(kinds.values())]
        same = "" if described == path else f", see `{described}`"
        null = " or null" if {"type": "null"} in field.get("anyOf", ()) else ""
        return f"keys by `kind` ({', '.join(kinds)}){same}{null}"


def _parts(field: Json) -> list[Json]:
    """Return a field, its alternatives, and the elements of its lists and mappings."""
    found = [field]
    for part in found:
        found += part.get("anyOf", [])
        found += [part[key] for key in ("items", "additionalProperties") if isinstance(part.get(key), dict)]
    return found


def _names(field: Json) -> list[str]:
    return [_name(part["$ref"]) for part in _parts(field) if "$ref" in part]


def _name(ref: str) -> str:
    return ref.rpartition("/")[2]


def _suffix(field: Json) -> str:
    """Return what follows the key in the paths of what it holds."""
    kinds = {part.get("type") for part in _parts(field)}
    return (
        "[]" if "array" in kinds else ".NAME" if any("additionalProperties" in part for part in _parts(field)) else ""
    )


def _type(field: Json) -> str:
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(part) for part in field["anyOf"]))
    if "enum" in field or "const" in field:
        return " or ".join(f"`{_text(value)}`" for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}" if "items" in field else "list of two integers"
    if isinstance(field.get("additionalProperties"), dict):
        return f"name → {_type(field['additionalProperties'])}"
    if "$ref" in field:
        return "keys"
    return f"{field.get('type', 'any')}{_bounds(field)}"


def _bounds(field: Json) -> str:
    """Return the bounds of a number; those that only a typo exceeds are left out."""
    bounds = (("exclusiveMinimum", ">"), ("minimum", "≥"), ("exclusiveMaximum", "<"), ("maximum", "≤"))
    found = [f"{sign} {field[key]:g}" for key, sign in bounds if key in field and field[key] < 1e6]
    return f" {', '.join(found)}" if found else ""


def _default(field: Json) -> str:
    value = field.get("default", "")
    return "-" if isinstance(value, dict) or "default" not in field else _code(value, field)


def _example(value: Any, field: Json) -> str:
    text = "-" if value is None else _code(value, field)
    return text if len(text) <= MAX_EXAMPLE else f"{text[:MAX_EXAMPLE]}…`"


def _code(value: Any, field: Json) -> str:
    if isinstance(value, int) and field.get("maximum") == MAX_BYTES:
        return next(f"`{value // size}{unit}`" for size, unit in SIZES if value >= size)
    return f"`{_text(value)}`"


def _text(value: Any) -> str:
    names = {None: "null", True: "true", False: "false", "": '""', "\t": "tab"}
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_text(inner)}' for key, inner in value.items())}}}"
    return names[value] if isinstance(value, str | bool | None) and value in names else str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
