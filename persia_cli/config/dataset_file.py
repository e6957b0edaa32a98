"""A data set described in its own file, such as the dataset.yaml that `persia recipe prepare` writes."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from persia_cli.config.explain import explain
from persia_cli.config.schema import Dataset, Node
from persia_cli.config.schema.dataset import BUILTIN
from persia_cli.errors import ConfigError


class _File(Node):
    """The contents of such a file, under their key in a job."""

    dataset: Dataset
    """The data set."""


def names_a_file(choice: object) -> bool:
    """Return True if the choice for `dataset` is the path of a file rather than the name of an option."""
    return isinstance(choice, str) and (choice.endswith((".yaml", ".yml")) or "/" in choice)


def read_dataset_file(name: str) -> dict[str, Any]:
    """Return the keys of `dataset` in a file, with its relative path made absolute from the file's folder.

    Raises ConfigError naming the file and every mistake in it.
    """
    path = Path(name).expanduser()
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"dataset={name}: there is no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"dataset={name}: this is a folder; name the file, {path / 'dataset.yaml'}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"dataset={name}: cannot be read, {str(error).splitlines()[0]}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: expected the keys of a data set, such as kind, path and labels")
    try:
        dataset = _File.model_validate({"dataset": values}).dataset
    except ValidationError as error:
        mistakes = explain(error, _File, {"dataset": values})
        raise ConfigError("\n".join(f"{name}: {sentence}" for sentence in mistakes.values())) from error
    found: dict[str, Any] = dataset.model_dump(mode="json")
    if "path" in found:
        given = found["path"]
        found["path"] = (
            _whole(given, path.parent) if isinstance(given, str) else [_whole(each, path.parent) for each in given]
        )
    return found


def _whole(path: str, folder: Path) -> str:
    """Return a path as seen from the current folder; absolute paths and URIs stay as they are."""
    if path.startswith(BUILTIN) or "://" in path:
        return path
    return str(folder / Path(path).expanduser())
