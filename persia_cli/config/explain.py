"""Mistakes in a configuration as complete sentences for users."""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from persia_cli.config import expected
from persia_cli.config.schema import Node

CANDIDATE = "# labels: "
"""Beginning of the lines that follow `labels: ???`, each for a column that may be the label."""
_LONGEST_VALUE = 60
_POS_WEIGHTS = ("pos_weight", "scale_pos_weight", "class_weight", "class_weights")
"""Names by which other programs have `pos_weight`."""
_TEXTS = ("string_type", "literal_error")
"""Pydantic's error types for values that are not the text of a key."""
_TOO_GREAT = ("less_than", "less_than_equal", "int_parsing_size")
"""Pydantic's error types for numbers above an upper bound."""


def explain(error: ValidationError, root: type[Node], values: Any) -> dict[str, str]:
    """Return a sentence for every mistake that pydantic found in `values`, by key path."""
    sentences: dict[str, str] = {}
    for details in error.errors(include_url=False):
        mistaken = expected.follow(root, details["loc"], values)
        for path, sentence in _sentences(details, mistaken, root, values):
            sentences.setdefault(path, sentence)
    # A list where a single value is allowed, too: the error of an element suffices.
    return {
        path: sentence
        for path, sentence in sentences.items()
        if not any(other.startswith(f"{path}[") for other in sentences)
    }


def nearest(wrong: str, choices: Sequence[str]) -> str | None:
    """Return the choice most similar to `wrong`, preferring swapped letters, if any is similar."""
    swapped = [choice for choice in choices if sorted(choice) == sorted(wrong)]
    if swapped:
        return swapped[0]
    similar = difflib.get_close_matches(wrong, choices, n=1, cutoff=0.6)
    return similar[0] if similar else None


def did_you_mean(right: str | None) -> str:
    """Return the end of a sentence that proposes `right`."""
    return f"; did you mean {right}?" if right else ""


def spell(value: Any) -> str:
    """Return a value as a user would write it on the command line, shortened."""
    if isinstance(value, str) and value.isprintable() and value == value.strip() and value:
        text = value
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def unknown_key(path: str, root: type[Node], values: Any, owner: type[Node] | None = None) -> str:
    """Return the end of a sentence on a key that does not exist; `owner` is the class that it is missing in."""
    if path.rpartition(".")[2] in _POS_WEIGHTS:
        return (
            "no such key; the weight of a label's positive samples is in its loss: train.losses={LABEL: {kind: bce, "
            "pos_weight: 3}}"
        )
    known = dict(expected.keys(root, values))
    group = path.rpartition(".")[0]
    if owner is not None and group and group not in known:  # members of lists, and what users name, are not keys
        known = {f"{group}.{name}": field for name, field in owner.model_fields.items()}
    right = _right_key(path, list(known))
    if right == path:  # in a file or an object, as one name with dots
        hint = f"; here keys are nested: {path.replace('.', ': {')}: ...{'}' * path.count('.')}"
    elif right is None:
        hint = _there_are([key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == group])
    elif expected.nodes(known[right].annotation):
        hint = did_you_mean(right)
    else:
        hint = did_you_mean(f"{right} ({expected.field_expectation(known[right])})")
    return f"no such key{hint}"


def _there_are(names: Sequence[str]) -> str:
    """Return the end of a sentence that lists all names."""
    return f"; there are {expected.any_of(names, 'and')}" if names else ""


def _right_key(path: str, known: list[str]) -> str | None:
    """Return the probable key: a similar one in the same group, one of the same name elsewhere, or any similar one."""
    group, _, leaf = path.rpartition(".")
    siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == group}
    near = nearest(leaf, list(siblings)) or next((name for name in siblings if leaf in name), None)
    if near:
        return siblings[near]
    elsewhere = next((key for key in known if key.rpartition(".")[2] == leaf), None)
    return elsewhere or (None if siblings else nearest(path, known))


def _sentences(
    details: ErrorDetails, mistaken: expected.SchemaKey, root: type[Node], values: Any
) -> Iterator[tuple[str, str]]:
    """Yield key path and sentence for one mistake; an unknown group yields one for each of its keys."""
    kind, path, value = details["type"], mistaken.path, details["input"]
    if kind in _TEXTS and isinstance(value, Mapping) and expected.nodes(mistaken.annotation):
        return  # Text or a group of keys is allowed here: the mistakes in the group are reported by their own keys.
    if kind == "extra_forbidden":
        for key, leaf in leaves(path, value):
            why = _other_kind(mistaken) or unknown_key(key, root, values, mistaken.owner if key == path else None)
            yield key, f"{key}={spell(leaf)}: {why}"
    elif details["loc"][-1:] == (expected.NAME,):
        names = expected.choices(mistaken.annotation)
        yield path, f"{path}: no such key{did_you_mean(nearest(str(value), names)) or _there_are(names)}"
    elif kind == "missing":
        yield path, needs_a_value(path, mistaken.annotation)
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        choices = expected.kinds(mistaken.annotation)
        tag = value.get("kind") if isinstance(value, Mapping) else None
        if tag is None:
            yield path, f"{path}.kind: needs a value ({expected.any_of(choices)})"
        else:
            yield (
                path,
                f"{path}.kind={spell(tag)}: expected {expected.any_of(choices)}"
                + did_you_mean(nearest(str(tag), choices)),
            )
    elif kind == "value_error":
        reason = str(details["ctx"]["error"]) if "ctx" in details else details["msg"]
        if not isinstance(value, Mapping | Node):
            reason = f"{path}={spell(value)}: {reason}"
        yield path, reason if reason.startswith(path) else f"{path}: {reason}"
    else:
        wanted = expected.expectation(mistaken.annotation, limits=kind in _TOO_GREAT)
        if value == "???":
            yield path, f"{path} is not filled in; write {wanted} in place of ???"
            return
        sentence = f"{path}={spell(value)}: expected {wanted}"
        yield path, sentence + _nearest_choice(value, mistaken.annotation)


def needs_a_value(path: str, annotation: Any) -> str:
    """Return the sentence for a key without a value."""
    if path == "dataset.labels":
        return f"{path}: needs the columns to predict; give {path}=[NAME]"
    if expected.nodes(annotation):
        return f"{path}: needs {expected.expectation(annotation)}"
    remedy = "" if "[" in path else f"; give {path}=..."  # members of lists have no key on the command line
    return f"{path}: needs a value ({expected.expectation(annotation)}){remedy}"


def label_to_choose(text: str) -> str:
    """Return the sentence for `labels: ???` in the YAML of a data set, with the candidates that it lists."""
    lines = text.splitlines()
    number = next((number for number, line in enumerate(lines, 1) if line.startswith("labels:")), 1)
    candidates = [line.removeprefix("# ") for line in lines if line.startswith(CANDIDATE)]
    choice = expected.any_of(candidates) if candidates else "labels: [NAME] or labels: [{name: NAME, positive: VALUE}]"
    return (
        f"the label is not chosen; write {choice} in line {number}, and leave the column that you choose out of dense "
        "and sparse"
    )


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key path below `path` that holds a plain value."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from leaves(f"{path}.{key}", below)
    else:
        yield path, value


def _other_kind(mistaken: expected.SchemaKey) -> str | None:
    """Return the end of a sentence on a key, or a group, that exists only in another kind of the same group."""
    group, _, leaf = mistaken.path.rpartition(".")
    owners = [kind for node in mistaken.alternatives if leaf in node.model_fields for kind in expected.kinds(node)]
    if not owners:
        return None
    chosen = expected.kind_of(mistaken.values)
    return f"no such key where {group}.kind={chosen}; {group}.kind={expected.any_of(owners)} has it"


def _nearest_choice(value: Any, annotation: Any) -> str:
    return did_you_mean(nearest(str(value), expected.choices(annotation)))
