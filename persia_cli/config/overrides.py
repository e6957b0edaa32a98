"""The arguments of a command line, each checked alone: `conf=NAME`, and Hydra overrides."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException

from persia_cli.config.expected import any_of, field_expectation, keys
from persia_cli.config.explain import did_you_mean, nearest
from persia_cli.config.files import names_a_file
from persia_cli.config.schema import Run

DEFAULT_CONF = "base"
SHORT = "init_from"
"""A key whose value, where it is text, stands for its key `path`."""


@dataclass(frozen=True)
class Overrides:
    """The settings on a command line, and the mistakes in them."""

    conf: str
    """Name or path of the primary configuration."""
    hydra: tuple[str, ...]
    """Overrides for Hydra; all keys are accepted here, so that validation sees unknown ones too."""
    replacements: Mapping[str, Any]
    """Keys set to a list, or to a mapping that names its `kind`: the value replaces the earlier one as a whole."""
    deletions: tuple[str, ...]
    """Keys to remove (`~KEY`), so that their defaults apply."""
    dataset_file: str | None
    """File that `dataset=PATH` names in place of an option."""
    wrong: Mapping[str, str]
    """Mistakes by the argument's key."""


def parse_overrides(
    arguments: Sequence[str], primaries: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> Overrides:
    """Sort command-line arguments; `primaries` and the options of `groups` are those in the search path."""
    confs: list[str] = []
    overrides: list[str] = []
    replacements: dict[str, Any] = {}
    deletions: list[str] = []
    wrong: dict[str, str] = {}
    dataset_file: str | None = None
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals and not argument.startswith("~"):
            wrong[argument] = f"'{argument}' is not KEY=VALUE{did_you_mean(_meant(argument, primaries, groups))}"
        elif key == "conf":
            confs.append(value)
        elif argument.startswith("~"):
            deletions.append(key[1:])
        elif key == "dataset" and names_a_file(value):
            dataset_file = value
        elif not key.strip("+"):
            wrong[argument] = f"'{argument}' has no key before the ="
        else:
            try:
                override = _parse(argument.lstrip("+"))
                if key.lstrip("+") == SHORT and isinstance(override.value(), (str, QuotedString)):
                    argument = f"{SHORT}.path={value}"  # so that it goes together with other arguments about it
                    override = _parse(argument)
                mapping = _plain(override.value())
                if _replaces(override.key_or_group, mapping):
                    replacements[_key(argument, override)] = mapping
                else:
                    overrides.append(_override(argument, override, groups))
                    replacements.pop(override.key_or_group, None)  # the last value of a key counts
            except ValueError as error:
                wrong[key.lstrip("+")] = str(error)
    if len(confs) > 1:
        wrong["conf"] = f"conf= is given {len(confs)} times ({any_of(confs, 'and')}); give it once"
    elif confs == [""]:
        wrong["conf"] = f"conf=: expected the name or path of a configuration; there are {any_of(primaries, 'and')}"
    name = confs[0] if confs else DEFAULT_CONF
    return Overrides(name, tuple(overrides), replacements, tuple(deletions), dataset_file, wrong)


def key_and_value(override: str) -> tuple[str, Any]:
    """Return the key path and the plain value of an override made by `parse_overrides`."""
    parsed = OverridesParser.create().parse_override(override.lstrip("+"))
    return parsed.key_or_group, _plain(parsed.value())


def quoted(text: str) -> str:
    """Quote text by Hydra's grammar: backslashes are doubled only before a quote."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f"'{escaped}'"


def _meant(argument: str, primaries: Sequence[str], groups: Mapping[str, Sequence[str]]) -> str | None:
    """Guess what a bare argument was meant to say."""
    if argument.endswith((".yaml", ".yml")):
        return f"conf={argument}"
    for key, options in {"conf": primaries, **groups}.items():
        if argument in options:
            return f"{key}={argument}"
    similar = nearest(argument, primaries)
    return f"conf={similar}" if similar else None


def _override(argument: str, override: Override, groups: Mapping[str, Sequence[str]]) -> str:
    """Return the override for Hydra; raises ValueError with a sentence."""
    key = _key(argument, override)
    if override.is_sweep_override():
        several = argument.partition("=")[2]
        listed = f"; for a list write {key}=[{several}]" if _takes_a_list(key) else ""
        raise ValueError(f"{argument}: expected one value{listed}; to try several in turn: persia sweep {argument}")
    value = override.value()
    if key not in groups or isinstance(value, dict):
        return f"++{override.input_line}"
    choice = value.text if isinstance(value, QuotedString) else str(value)
    if choice not in groups[key]:
        hint = did_you_mean(nearest(choice, groups[key]))
        raise ValueError(f"{key}={argument.partition('=')[2]}: expected {any_of(groups[key])}{hint}")
    return f"{key}={choice}"


def _replaces(key: str, value: Any) -> bool:
    """Return True if a value replaces the earlier one as a whole, False if it is merged with it."""
    return isinstance(value, list) or (isinstance(value, dict) and ("kind" in value or _takes_a_list(key)))


def _takes_a_list(key: str) -> bool:
    field = dict(keys(Run)).get(key)
    return field is not None and "a list of" in field_expectation(field)


def _takes_keys(key: str) -> bool:
    return any(other.startswith(f"{key}.") for other, _ in keys(Run))


def _key(argument: str, override: Override) -> str:
    """Return the key path of an override; raises ValueError with a sentence for forms that only Hydra knows."""
    key = override.key_or_group
    if key.partition(".")[0] == "hydra":
        raise ValueError(f"{argument}: persia has no hydra keys; --run-dir sets the folder of a run")
    if override.package is not None or "/" in key:
        raise ValueError(f"{argument}: '{argument.partition('=')[0]}' is not a key such as train.batch_size")
    parts = key.split(".")
    for group in (".".join(parts[:count]) for count in range(1, len(parts))):
        if _takes_a_list(group) and not _takes_keys(group):
            raise ValueError(f"{key}: {group} is a list, so it has no such key; give the whole list, {group}=[...]")
    return key


def _plain(value: Any) -> Any:
    """Remove Hydra's quotes from a parsed value."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.text if isinstance(value, QuotedString) else value


def _parse(argument: str) -> Override:
    """Parse by Hydra's grammar; a value that it cannot read, but that opens no bracket or quote, is read as text."""
    parser = OverridesParser.create()
    try:
        return parser.parse_override(argument)
    except HydraException:
        key, _, value = argument.partition("=")
    try:
        if not value.startswith(("[", "{", "'", '"')) and "${" not in value:
            return parser.parse_override(f"{key}={quoted(value)}")
    except HydraException:
        raise ValueError(f"{argument}: '{key}' is not a key such as train.batch_size") from None
    equals = re.search(r"[^\s,:\[{]*=[^\s,\]}]*", value)
    if equals and value.count("[") == value.count("]") and value.count("{") == value.count("}"):
        raise ValueError(f"{argument}: the value cannot be read; quote a value with an equals sign: '{equals[0]}'")
    raise ValueError(f"{argument}: the value cannot be read; is a bracket or quote left open?")
