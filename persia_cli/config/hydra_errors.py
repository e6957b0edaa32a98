"""Sentences for users on configuration files that Hydra cannot compose."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from persia_cli.config import available, expected
from persia_cli.config.explain import did_you_mean, nearest, spell
from persia_cli.config.files import read_primary
from persia_cli.config.schema import Run


def composition_error(file: Path, error: Exception) -> str:
    """Return a sentence on the reason that a primary configuration, or a file in its defaults, cannot be composed."""
    if isinstance(error, yaml.MarkedYAMLError):
        return _invalid_yaml(file, error)
    if isinstance(error, MissingConfigException):
        return _missing_file(file, error)
    if isinstance(error, UnicodeDecodeError):
        return f"{file}, or a file in its defaults, is not UTF-8 text"
    unmatched = re.search(r"Could not override '([^']+)'", str(error))
    if unmatched:
        hint = did_you_mean(nearest(unmatched[1], list(available.groups())))
        return f"{file}: its defaults override '{unmatched[1]}', which is not a config group{hint}"
    if "Cannot merge" in str(error) and (mistakes := _misplaced(file)):
        return "\n".join(mistakes)
    key = getattr(error.__cause__, "full_key", None)
    return f"{file}: {f'{key}: ' if key else ''}{_reworded(first_line(error))}"


def _misplaced(file: Path) -> list[str]:
    """Return a sentence for each list in the place of keys, and the reverse, in a file and its defaults."""
    written = read_primary(file)
    values_of_file = {key: value for key, value in written.items() if key != "defaults"}
    sentences = [f"{file}: {mistake}" for mistake in _wrong_containers(values_of_file)]
    for group, option in _chosen(written.get("defaults")):
        other = file.parent / group / f"{option}.yaml"
        values = yaml.safe_load(other.read_text(encoding="utf-8")) if other.is_file() else None
        sentences += [f"{other}: {mistake}" for mistake in _wrong_containers({group: values})]
    return sentences


def _chosen(defaults: object) -> Iterator[tuple[str, str]]:
    """Yield each group and option that a file's defaults name."""
    for entry in defaults if isinstance(defaults, list) else []:
        for group, option in entry.items() if isinstance(entry, dict) else ():
            yield str(group).removeprefix("override ").strip(), str(option)


def _wrong_containers(values: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each key whose value has a structure that no kind of its group accepts."""
    wrong: dict[str, str] = {}
    right = set()
    for path, field in expected.keys(Run, values):
        value: Any = values
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if not expected.takes(field, value):
            wrong[path] = f"{path}={spell(value)}: expected {expected.field_expectation(field)}"
        else:
            right.add(path)
    return [sentence for path, sentence in wrong.items() if path not in right]


def _reworded(text: str) -> str:
    """Return Hydra's message about a file as text for users who do not know Hydra."""
    if re.search(r"Cannot merge \w+ with \w+", text):
        return "one file has a list where another has keys with values; write both the same way"
    if "DictConfig" in text or "ListConfig" in text:
        return "expected keys with values, such as name: shop; this is a list"
    return text


def first_line(error: Exception) -> str:
    """Return the first line of an error; Hydra may keep it in the cause."""
    cause = error.__cause__ or error.__context__
    if isinstance(error, HydraException) and isinstance(cause, OmegaConfBaseException):
        error = cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def _invalid_yaml(file: Path, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else f"{file}"
    return f"{where}: not valid YAML, {error.problem}"


def _missing_file(file: Path, error: MissingConfigException) -> str:
    missing = error.missing_cfg_file or ""
    group, _, option = missing.rpartition("/")
    choices = list(available.groups().get(group, {}) if group else available.primaries())
    right = nearest(option, choices)
    hint = did_you_mean(f"{group}/{right}".lstrip("/") if right else None)
    if missing.startswith("dataset/") and missing.endswith((".yaml", ".yml")):
        file_name = missing.removeprefix("dataset/")
        hint = f" among persia's own; your own file needs a separate key next to defaults: dataset: {file_name}"
    return f"{file}: its defaults ask for {missing}, which does not exist{hint}"
