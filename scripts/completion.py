"""Write the commands and keys that shells complete: `python -m scripts.completion`."""

import json
import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from persia_cli.commands.completion import TABLE
from persia_cli.config.overrides import quoted
from persia_cli.config.schema import Run
from persia_cli.main import app
from scripts.reference_config import MAX_BYTES, SIZES
from scripts.reference_examples import ABSENT, example_of

Json = dict[str, Any]
PLAIN = r"[\w.+/:@ -]+"
"""Texts that need no quotes in an argument."""
WORD = r"[\w.+-]+"
"""Values that need no quotes in a shell."""
MAX_EXAMPLE = 80
"""Characters of an example."""


def text() -> str:
    """Return the content of the file."""
    lines = [*_commands("persia", get_command(app)), *_keys()]
    return "".join("\t".join(line) + "\n" for line in lines)


def _commands(path: str, command: Any) -> Iterator[tuple[str, str, str]]:
    """Yield each command, its number of arguments before KEY=VALUE, and its options, those with a value with a =."""
    context = command.make_context(path, [], resilient_parsing=True)
    parameters = command.get_params(context)
    arguments = [each.name for each in parameters if each.param_type_name == "argument"]
    options = [
        name if each.is_flag else f"{name}="
        for each in parameters
        for name in each.opts
        if each.param_type_name == "option" and name.startswith("--") and not each.hidden
    ]
    yield path, str(arguments.index("overrides")) if "overrides" in arguments else "", " ".join(options)
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _commands(f"{path} {name}", below)


def _keys() -> Iterator[tuple[str, str, str]]:
    """Yield each key with an example and, of a choice, its values; the default is among them."""
    schema = Run.model_json_schema()
    examples: dict[str, str] = {}
    values: dict[str, dict[str, None]] = {}
    for key, kind, field in _fields("", schema, schema["$defs"]):
        example = example_of(key, kind, field)
        if example not in (None, "???") and len(_spelled(example, field)) <= MAX_EXAMPLE:
            examples.setdefault(key, _spelled(example, field))
        values.setdefault(key, {}).update(dict.fromkeys(each for each in _values(field) if re.fullmatch(WORD, each)))
    for key, found in values.items():
        yield key, examples.get(key, ""), " ".join(found)


def _fields(prefix: str, node: Json, classes: Json) -> Iterator[tuple[str, str | None, Json]]:
    """Yield key, kind of its group, and JSON Schema of each field below a class."""
    kind = node["properties"].get("kind", {}).get("const")
    for name, field in node["properties"].items():
        yield prefix + name, kind, field
        for suffix, below in _classes(field):
            yield from _fields(f"{prefix}{name}{suffix}.", classes[below], classes)


def _classes(part: Json, suffix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the classes that a value may have, and what is between its key and theirs: `[]` or `.NAME`."""
    if "$ref" in part:
        yield suffix, part["$ref"].rpartition("/")[2]
    for each in (*part.get("anyOf", ()), *part.get("oneOf", ())):
        yield from _classes(each, suffix)
    for key, more in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(part.get(key), dict):
            yield from _classes(part[key], suffix + more)


def _values(field: Json) -> Iterator[str]:
    """Yield the default of a field, if it is one value, and the values that it may have."""
    default = field.get("default")
    if default not in ABSENT and not isinstance(default, list | dict):
        yield _spelled(default, field)
    for part in (field, *field.get("anyOf", ())):
        if part.get("type") in ("boolean", "null"):
            yield from ("false", "true") if part["type"] == "boolean" else ("null",)
        yield from (_spelled(each, {}) for each in part.get("enum", [part["const"]] if "const" in part else []))


def _spelled(value: Any, field: Json) -> str:
    """Write a value as on the command line."""
    if isinstance(value, list):
        return f"[{','.join(_spelled(each, {}) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_spelled(each, {})}' for key, each in value.items())}}}"
    if isinstance(value, int) and MAX_BYTES in [part.get("maximum") for part in (field, *field.get("anyOf", ()))]:
        return next(f"{value // size}{unit}" for size, unit in SIZES if value >= size)
    if not isinstance(value, str):
        return json.dumps(value)
    return "tab" if value == "\t" else value if re.fullmatch(PLAIN, value) else quoted(value)


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
