"""The record of a run's configuration: every key with its value, in a file that persia can run again."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from persia_cli.config.explain import explain
from persia_cli.config.schema import Node, Run
from persia_cli.disk import read_regular, write_whole
from persia_cli.errors import ConfigError
from persia_cli.version import __version__

CONFIG = "config.yaml"
"""The file in a run directory."""
JOB = "job.json"
"""The file of a run directory with the job of its last start."""
SAMPLES = "samples.arrow"
"""The file of a run directory with some samples, for exports."""
SWEEP = "sweep.json"
"""The file of a sweep's folder with its request."""
POINTS = "points"
"""The folder of a sweep's folder with its runs."""

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
NodeT = TypeVar("NodeT", bound=Node)
_HEAD = f"""\
# The complete configuration of a run, written by persia {__version__}.
# `persia train conf=PATH` with the path of this file runs it again.
"""
_WRITER = re.compile(r"^# .*, written by persia (\S+)\.$", re.MULTILINE)


def to_yaml(run: Run) -> str:
    """Return the run as YAML, keys in the order of the schema."""
    return yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def write_run(run: Run, path: Path) -> None:
    """Write the run's configuration, as a whole or not at all. Raises DiskError."""
    write_whole(path, _HEAD + to_yaml(run))


def read_run(path: Path) -> Run:
    """Read a file of `write_run`; raises ConfigError if it is missing, damaged or of another version."""
    run: Run = load_yaml(path, f"{path}", lambda text: parsed(text, f"{path}"))
    return run


def parsed(text: str, name: str) -> Run:
    """Return a run from the text of `write_run` or `to_yaml`; raises ConfigError, with its `name`, if it is not one.

    The first line of a file names the version that wrote it, which is the one that can read it.
    """
    try:
        values = plain_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: cannot be read, {str(error).splitlines()[0]}") from error
    try:
        return checked(Run, values, name)
    except ConfigError as error:
        writer = _WRITER.search(text)
        if writer is None or writer[1] == __version__:
            error.add_note(
                f"{name} was changed, or an earlier build of persia {__version__} wrote it: go on with that one"
            )
            raise
        first, *_ = str(error).removeprefix(f"{name}: ").splitlines()
        raise ConfigError(
            f"{name} was written by persia {writer[1]}, and persia {__version__} cannot use it ({first}); go on with "
            f"persia {writer[1]}, or begin a new run"
        ) from error


def plain_yaml(text: str) -> Any:
    """Return the values of YAML as persia writes it; raises YAMLError for more.

    It has no aliases, with which a short text stands for gigabytes.
    """
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, LOADER)):
            raise yaml.YAMLError("it has an alias (*name), which persia never writes")
        return yaml.load(text, LOADER)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def load_yaml(path: Path, name: str, load: Callable[[str], Any] = yaml.safe_load) -> Any:
    """Return the values in a YAML file; raises ConfigError, with the `name` that the user gave it, if it cannot be."""
    try:
        return load(read_regular(path).decode())
    except FileNotFoundError:
        raise ConfigError(f"{name}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read, {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{name}: cannot be read, {str(error).splitlines()[0]}") from error


def checked(kind: type[NodeT], values: Any, file: Path | str) -> NodeT:
    """Return the values of a file as a config class; raises ConfigError naming the file and every mistake in it."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        mistakes = explain(error, kind, values)
        raise ConfigError("\n".join(f"{file}: {sentence}" for sentence in mistakes.values())) from error
