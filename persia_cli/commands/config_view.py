"""Configuration keys on the screen: the list of a prefix, and one key with its value and the place that sets it."""

import re
import shlex
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from persia_cli.commands.screen import out, pairs, say_json
from persia_cli.config.compose import compose_run
from persia_cli.config.examples import as_argument, example_of
from persia_cli.config.expected import (
    any_of,
    as_people_write,
    field_default,
    field_expectation,
    is_changeable,
    keys,
    kinds,
    nodes,
)
from persia_cli.config.explain import did_you_mean, nearest, spell
from persia_cli.config.origin import layers_of, origin
from persia_cli.config.schema import Run
from persia_cli.errors import UserError

MAX_NEAREST, SIMILAR = 3, 0.75


def explain_key(key: str, overrides: Sequence[str], folders: Sequence[Path], as_json: bool) -> None:
    """Print the explanation of a key for a command line; raises UserError for an unknown key."""
    known = _by_key(keys(Run, members=True))
    general = _general(key, list(known))
    run = compose_run(overrides, folders)
    values = run.model_dump(mode="json")
    chosen = _by_key(keys(Run, values, members=True))
    fields = chosen.get(general, known[general])
    shown = next((value for field in fields if (value := example_of(general, field)) is not None), None)
    example = "" if shown is None else as_argument(shown)
    leaf = key.rpartition(".")[2]
    facts: dict[str, Any] = {
        "meaning": " ".join(dict.fromkeys(map(_meaning, fields))),
        "type": _either(map(field_expectation, known[general] if leaf == "kind" else fields)),
        "default": _either(field_default(field).removeprefix("; ").removeprefix("default ") for field in fields),
        "example": (f"{leaf}: {example}" if "[" in key else shlex.quote(f"{key}={example}")) if example else "none",
        "resume": "a resume may change it" if is_changeable(general) else "a resume cannot change it",
    }
    if "[]" not in key and "NAME" not in key.split("."):  # It is the key of one element, which has a value.
        value, source = _value(values, key), origin(key.partition("[")[0], layers_of(overrides, folders))
        unset = "nothing, so it has its default" if general in chosen else "nothing: this configuration has no such key"
        if as_json:
            facts |= {"value": value, "set_by": source and source._asdict()}
        else:
            facts |= {"value": spell(as_people_write(fields[0], value)), "set by": source.place if source else unset}
    if as_json:
        say_json({"key": key} | facts)
    else:
        pairs(out(), facts)


def _by_key(keyed_fields: Iterable[tuple[str, FieldInfo]]) -> dict[str, list[FieldInfo]]:
    """Return the fields of each key: several where kinds of a group have it."""
    fields: dict[str, list[FieldInfo]] = {}
    for key, field in keyed_fields:
        fields.setdefault(key, []).append(field)
    return fields


def _meaning(field: FieldInfo) -> str:
    meaning = field.description or next((node.__doc__ for node in nodes(field.annotation)), "") or ""
    return " ".join(meaning.split())


def _either(texts: Iterable[str]) -> str:
    return any_of([text for text in dict.fromkeys(texts) if text] or ["none"])


def _general(key: str, known: Sequence[str]) -> str:
    """Return a key with NAME and [] in place of what users name and number, as the schema has it."""
    for known_key in known:
        pattern = re.escape(known_key).replace("NAME", "[^.]+").replace(r"\[\]", r"\[\d*\]")
        if re.fullmatch(pattern, key):
            return known_key
    leaf = key.rpartition(".")[2]
    near = [
        *(other for other in known if other.rpartition(".")[2] == leaf),
        *get_close_matches(key, known, MAX_NEAREST, SIMILAR),
    ]
    hint = "`persia config list GROUP` has those of a group"
    if near:
        hint = f"did you mean {any_of(list(dict.fromkeys(near))[:MAX_NEAREST])}?"
    raise UserError(f"persia config explain {key}: no such key; {hint}")


def _value(values: Any, key: str) -> Any:
    """Return the value at a key, null if there is none."""
    for name in re.findall(r"[^.\[\]]+", key):
        if isinstance(values, list):
            values = dict(enumerate(values)).get(int(name))
        else:
            values = values.get(name) if isinstance(values, dict) else None
    return values


def list_keys(prefix: str) -> None:
    """List the keys of a prefix; raises UserError, with a similar key, if none begins with it."""
    # Kinds by text by key: a key of several kinds may have several meanings.
    lines: dict[str, dict[str, list[str]]] = {}
    known: dict[str, Any] = {}
    for key, field in keys(Run, members=True):
        known[key] = field
        if key == prefix or key.startswith((f"{prefix}.", f"{prefix}[")):
            meaning = " ".join((field.description or "").split())
            text = f"{meaning} ({field_expectation(field)}{field_default(field)})"
            above, _, name = key.rpartition(".")
            owners = nodes(known[above].annotation) if above in known and name != "kind" else []
            own = [kind for node in owners if node.model_fields.get(name) is field for kind in kinds(node)]
            lines.setdefault(key, {}).setdefault(text, []).extend(own)
    if not lines:
        right = nearest(prefix, list(known)) or next((key for key in known if key.rpartition(".")[2] == prefix), None)
        raise UserError(f"persia config list {prefix}: no key begins with this{did_you_mean(right)}")
    pairs(out(), {key: _by_kind(texts) for key, texts in lines.items()})


def _by_kind(texts: dict[str, list[str]]) -> str:
    """Return the meanings of a key, of several each after its kinds."""
    if len(texts) == 1 or not all(texts.values()):
        return " | ".join(texts)
    return " | ".join(f"{'/'.join(dict.fromkeys(kinds))}: {text}" for text, kinds in texts.items())
