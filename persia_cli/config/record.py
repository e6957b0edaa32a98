"""The record of a run's configuration: every key with its value, in a file that persia can run again."""

from pathlib import Path

import yaml
from pydantic import ValidationError

from persia_cli import __version__
from persia_cli.config.explain import explain
from persia_cli.config.schema import Run
from persia_cli.disk import write_whole
from persia_cli.errors import ConfigError

_HEAD = f"""\
# The complete configuration of a run, written by persia {__version__}.
# `persia train conf=PATH` with the path of this file runs it again.
"""


def to_yaml(run: Run) -> str:
    """Return the run as YAML, keys in the order of the schema."""
    return yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def write_run(run: Run, path: Path) -> None:
    """Write the run's configuration, as a whole or not at all. Raises DiskError."""
    write_whole(path, _HEAD + to_yaml(run))


def read_run(path: Path) -> Run:
    """Read a file of `write_run`; raises ConfigError if it is missing, damaged or of another version."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read, {str(error).splitlines()[0]}") from error
    try:
        return Run.model_validate(values)
    except ValidationError as error:
        mistakes = explain(error, Run, values)
        raise ConfigError("\n".join(f"{path}: {sentence}" for sentence in mistakes.values())) from error
