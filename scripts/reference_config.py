"""The reference page of configuration keys, from the schema, in the words of `persia config list`."""

from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from persia_cli.config.examples import as_argument, example_of
from persia_cli.config.expected import classes_below, field_default, field_expectation, keys, kinds, nodes
from persia_cli.config.schema import Node, Run

HEAD = """# Configuration keys

This page is generated from the schema. `persia config show` prints the complete configuration of a command, and
`persia config list` the configurations and options that Persia ships with. An unknown key is an error.

A key without a default is *required*; the shipped configurations set it. In a key path, `NAME` is a name that you
choose, such as a table or a label, and `[]` is an element of a list. Sizes in bytes may have a unit: `512MiB`, `4GiB`.
A long example is cut; a default is an example too.
"""
COLUMNS = "| key | meaning, type, default, example |\n| --- | --- |"
MAX_EXAMPLE = 40
"""Characters of an example."""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join(_Page().lines()) + "\n"


class _Page:
    """The sections of a page; each union of kinds is described once, at its shortest key."""

    def __init__(self) -> None:
        self._keys: dict[tuple[type[Node], ...], str] = {}
        """The classes of a union -> the key at which they are described."""
        self._described: set[tuple[type[Node], ...]] = set()
        for key, field in sorted(keys(Run, members=True), key=lambda item: item[0].count(".")):
            for path, classes in _below(key, field).items():
                self._keys.setdefault(classes, path)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the page."""
        below = {key: _below(key, field) for key, field in Run.model_fields.items()}
        yield f"{HEAD}\n## Keys without a group\n\n{COLUMNS}"
        yield from (_row(key, Run.model_fields[key]) for key in below if not below[key])
        for key in filter(below.get, below):
            yield f"\n## {key}\n"
            [(path, classes)] = below[key].items()
            if _is_union(classes):
                yield f"{Run.model_fields[key].description}"
                yield from self._kinds(path, classes)
            else:
                yield from self._section(path, classes[0])

    def _kinds(self, path: str, classes: tuple[type[Node], ...]) -> Iterator[str]:
        """Yield a section for each kind, at the key at which they are described."""
        if self._keys[classes] == path and classes not in self._described:
            self._described.add(classes)
            for node in classes:
                yield f"\n### {path}: {kinds(node)[0]}\n"
                yield from self._section(path, node)

    def _section(self, path: str, node: type[Node]) -> Iterator[str]:
        unions: dict[str, tuple[type[Node], ...]] = {}
        yield f"{node.__doc__}\n\n{COLUMNS}"
        yield from rows(path, node, unions)
        for key, classes in unions.items():
            yield from self._kinds(key, classes)


def rows(path: str, node: type[Node], unions: dict[str, tuple[type[Node], ...]]) -> Iterator[str]:
    """Yield a row for each field and for the fields of the class that it holds; collect the unions."""
    for name, field in node.model_fields.items():
        yield _row(f"{path}.{name}", field)
        for key, classes in _below(f"{path}.{name}", field).items():
            if _is_union(classes):
                unions[key] = classes
            else:
                for inner in classes:
                    yield from rows(key, inner, unions)


def _below(key: str, field: FieldInfo) -> dict[str, tuple[type[Node], ...]]:
    """Return the classes that a field holds, by the path before their keys."""
    found: dict[str, tuple[type[Node], ...]] = {}
    for between, node in classes_below(field):
        found[key + between] = (*found.get(key + between, ()), node)
    return found


def _is_union(classes: tuple[type[Node], ...]) -> bool:
    """Return True if `kind` decides which of the classes a value has."""
    return len(classes) > 1 and bool(kinds(classes[0]))


def _row(key: str, field: FieldInfo) -> str:
    default = field_default(field).removeprefix("; ").removeprefix("default ")
    example = "" if key.endswith(".kind") else _example(example_of(key, field))  # a kind has one value
    meaning = field.description or next((node.__doc__ or "" for node in nodes(field.annotation)), "")
    facts = [f"*{field_expectation(field)}*"]
    facts += ["required"] if field.is_required() else [f"default `{default}`"] if default else []
    facts += [f"for example {example}"] if example not in (f"`{default}`", "") else []
    cell = " ".join(f"{meaning}<br>{'; '.join(facts)}".split()).replace("|", "\\|")
    return f"| `{key}` | {cell} |"


def _example(value: Any) -> str:
    text = "" if value is None else f"`{as_argument(value)}`"
    return text if len(text) <= MAX_EXAMPLE else f"{text[:MAX_EXAMPLE]}…`"
