"""The words of a command line: `conf=NAME` apart from Hydra overrides, each checked on its own."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException

from persia_cli.config.dataset_file import names_a_file
from persia_cli.config.expected import any_of
from persia_cli.config.explain import did_you_mean, nearest
from persia_cli.errors import ConfigError

DEFAULT_CONF = "base"


@dataclass(frozen=True)
class Words:
    """What the words ask for, and what is wrong with the others."""

    conf: str
    """Name or path of the primary configuration."""
    overrides: tuple[str, ...]
    """Hydra overrides; keys are forced, so that validation sees the unknown ones too."""
    replacements: Mapping[str, dict[str, Any]]
    """Keys set to a mapping that names its `kind`: it takes the place of the whole old one, whose kind may differ."""
    deletions: tuple[str, ...]
    """Keys to take out (`~KEY`), so that their default holds."""
    dataset_file: str | None
    """File that `dataset=PATH` names in place of an option."""
    wrong: Mapping[str, str]
    """Mistakes by the word's key."""


def read_words(words: Sequence[str], primaries: Sequence[str], groups: Mapping[str, Sequence[str]]) -> Words:
    """Sort command-line words; `primaries` and the options of `groups` are what the search path offers."""
    confs: list[str] = []
    overrides: list[str] = []
    replacements: dict[str, dict[str, Any]] = {}
    deletions: list[str] = []
    wrong: dict[str, str] = {}
    dataset_file: str | None = None
    for word in words:
        key, equals, value = word.partition("=")
        if not equals and not word.startswith("~"):
            wrong[word] = f"'{word}' is not KEY=VALUE{did_you_mean(_meant(word, primaries, groups))}"
        elif key == "conf":
            confs.append(value)
        elif word.startswith("~"):
            deletions.append(key[1:])
        elif key == "dataset" and names_a_file(value):
            dataset_file = value
        elif not key.strip("+"):
            wrong[word] = f"'{word}' has no key before the ="
        else:
            try:
                override = _parse(word.lstrip("+"))
                mapping = _plain(override.value())
                if isinstance(mapping, dict) and "kind" in mapping:
                    replacements[override.key_or_group] = mapping
                else:
                    overrides.append(_override(word, override, groups))
            except ValueError as error:
                wrong[key.lstrip("+")] = str(error)
    if len(confs) > 1:
        wrong["conf"] = f"conf= is given {len(confs)} times ({any_of(confs, 'and')}); give it once"
    elif confs == [""]:
        wrong["conf"] = f"conf=: expected the name or path of a configuration; there are {any_of(primaries, 'and')}"
    name = confs[0] if confs else DEFAULT_CONF
    return Words(name, tuple(overrides), replacements, tuple(deletions), dataset_file, wrong)


def choices(word: str) -> list[str]:
    """Return the words that a word of a sweep stands for: one for each value, itself if it has one value only.

    Hydra's grammar decides: `a=1,2`, `a=range(0,5)`, `a=choice(1,2)`; brackets, braces and quotes keep commas together.
    Raises ConfigError for a sweep without a fixed list of values.
    """
    key, equals, _ = word.partition("=")
    if not equals or word.startswith("~"):
        return [word]
    try:
        override = OverridesParser.create().parse_override(word.lstrip("+"))
        if not override.is_sweep_override():
            return [word]
        if override.is_discrete_sweep():
            return [f"{key}={value}" for value in override.sweep_string_iterator()]
    except HydraException:
        if "=glob(" not in word:
            return [word]  # as text, or as a mistake that is told when it is composed
    raise ConfigError(f"{word}: a sweep takes values one by one, so list them: {key}=1,2,3 or {key}=range(1,4)")


def key_and_value(override: str) -> tuple[str, Any]:
    """Return the key path and the plain value of an override that `read_words` made."""
    parsed = OverridesParser.create().parse_override(override.lstrip("+"))
    return parsed.key_or_group, _plain(parsed.value())


def quoted(text: str) -> str:
    """Quote text by Hydra's grammar: backslashes are doubled before a quote only."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f"'{escaped}'"


def _meant(word: str, primaries: Sequence[str], groups: Mapping[str, Sequence[str]]) -> str | None:
    """Guess what a bare word was meant to say."""
    if word.endswith((".yaml", ".yml")):
        return f"conf={word}"
    for key, options in {"conf": primaries, **groups}.items():
        if word in options:
            return f"{key}={word}"
    found = nearest(word, primaries)
    return f"conf={found}" if found else None


def _override(word: str, override: Override, groups: Mapping[str, Sequence[str]]) -> str:
    """Return the override to hand to Hydra; raises ValueError with a sentence."""
    key = override.key_or_group
    if override.package is not None or "/" in key or key.partition(".")[0] == "hydra":
        raise ValueError(f"{word}: '{word.partition('=')[0]}' is not a key such as train.batch_size")
    if override.is_sweep_override():
        raise ValueError(f"{word}: expected one value; for a list write {key}=[{word.partition('=')[2]}]")
    value = override.value()
    if key not in groups or isinstance(value, dict):
        return f"++{override.input_line}"
    choice = value.text if isinstance(value, QuotedString) else str(value)
    if choice not in groups[key]:
        hint = did_you_mean(nearest(choice, groups[key]))
        raise ValueError(f"{key}={choice}: expected {any_of(groups[key])}{hint}")
    return f"{key}={choice}"


def _plain(value: Any) -> Any:
    """Take Hydra's quotes off a parsed value."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.text if isinstance(value, QuotedString) else value


def _parse(word: str) -> Override:
    """Parse by Hydra's grammar; a value that it cannot read and that opens no bracket or quote is taken as text."""
    parser = OverridesParser.create()
    try:
        return parser.parse_override(word)
    except HydraException:
        key, _, value = word.partition("=")
    try:
        if not value.startswith(("[", "{", "'", '"')) and "${" not in value:
            return parser.parse_override(f"{key}={quoted(value)}")
    except HydraException:
        raise ValueError(f"{word}: '{key}' is not a key such as train.batch_size") from None
    raise ValueError(f"{word}: the value cannot be read; is a bracket or quote left open?")
