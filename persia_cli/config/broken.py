"""Configuration files that Hydra cannot compose, worded for the person who wrote them."""

import re
from pathlib import Path

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from persia_cli.config import offers
from persia_cli.config.explain import did_you_mean, nearest


def broken_file(file: Path, error: Exception) -> str:
    """Return a sentence on why a primary configuration, or a file it asks for, cannot be composed."""
    if isinstance(error, yaml.MarkedYAMLError):
        return _invalid_yaml(file, error)
    if isinstance(error, MissingConfigException):
        return _missing_file(file, error)
    if isinstance(error, RecursionError):
        return f"{file}: its defaults lead back to itself"
    if isinstance(error, UnicodeDecodeError):
        return f"{file}, or a file in its defaults, is not UTF-8 text"
    unmatched = re.search(r"Could not override '([^']+)'", str(error))
    if unmatched:
        hint = did_you_mean(nearest(unmatched[1], list(offers.groups())))
        return f"{file}: its defaults override '{unmatched[1]}', which is no group{hint}"
    key = getattr(error.__cause__, "full_key", None)
    return f"{file}: {f'{key}: ' if key else ''}{first_line(error)}"


def first_line(error: Exception) -> str:
    """Return the first line of what went wrong; Hydra may keep it in the cause."""
    if isinstance(error, HydraException) and isinstance(error.__cause__, OmegaConfBaseException):
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def _invalid_yaml(file: Path, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else f"{file}"
    return f"{where}: not valid YAML, {error.problem}"


def _missing_file(file: Path, error: MissingConfigException) -> str:
    missing = error.missing_cfg_file or ""
    group, _, option = missing.rpartition("/")
    choices = list(offers.groups().get(group, {}) if group else offers.primaries())
    right = nearest(option, choices)
    hint = did_you_mean(f"{group}/{right}".lstrip("/") if right else None)
    return f"{file}: its defaults ask for {missing}, which does not exist{hint}"
