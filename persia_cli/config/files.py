"""Configuration files that users write: data sets in separate files, and primary configurations as written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from persia_cli.config.explain import label_to_choose
from persia_cli.config.record import checked, load_yaml
from persia_cli.config.schema import Dataset, Node
from persia_cli.errors import ConfigError
from persia_cli.shipped import shipped
from persia_cli.storage.addresses import BUILTIN, DELTA, ICEBERG, local_path, rooted

BASE = "base"


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
    path = local_path(name)
    if path.is_dir():
        raise ConfigError(f"dataset={name}: this is a folder; name the file, {path / 'dataset.yaml'}")
    values = load_yaml(path, f"dataset={name}")
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: expected the keys of a data set, such as kind, path and labels")
    if "dataset" in values or "defaults" in values:
        raise ConfigError(f"dataset={name}: this file is a configuration; use it as conf={name}")
    if values.get("labels") == "???":
        raise ConfigError(f"{name}: {label_to_choose(path.read_text(encoding='utf-8'))}")
    keys: dict[str, Any] = checked(_File, {"dataset": values}, name).dataset.model_dump(mode="json")
    for place in (keys, *keys.get("histories", {}).values()):
        if (given := place.get("path")) is not None:
            is_one = isinstance(given, str)
            folder = path.parent
            place["path"] = rooted(given, folder) if is_one else [rooted(part, folder) for part in given]
    return keys


def read_primary(file: Path) -> dict[str, Any]:
    """Return the contents of a primary configuration; empty if it cannot be read, which Hydra then reports.

    Raises ConfigError for defaults that would override the file itself, and for Hydra's own keys.
    """
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    if not isinstance(values, dict):
        return {}
    if "hydra" in values:
        raise ConfigError(f"{file}: 'hydra' is not a key of persia; remove it (--run-dir sets the folder of a run)")
    defaults = values.get("defaults")
    if isinstance(defaults, list) and "_self_" in defaults:
        _refuse_overridden(file, values, defaults)
    return values


def default_name(file: Path, values: Mapping[str, Any], dataset: str | None) -> tuple[str, str] | None:
    """Return the name of a configuration that has none, in characters that a folder name may have, and its origin.

    It is that of the file, or, where a file `dataset` describes the data of base, that of the data.
    """
    if file.stem == BASE and values.get("name", BASE) == BASE:
        if dataset is None:
            return None
        path = read_dataset_file(dataset).get("path")
        origin, name = f"the name of the data in {dataset}", _name_of_data(path)
    elif "name" in values:
        return None
    else:
        origin, name = f"the name of {file}", file.stem
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name).lstrip("._-")
    return (plain, origin) if plain else None


def _name_of_data(path: object) -> str:
    """Return the name of the file, folder or table at a path, or at the first of several, without endings."""
    first = path[0] if isinstance(path, list) and path else path
    text = str(first or "").removeprefix(BUILTIN).removeprefix(DELTA).rstrip("/")
    if text.startswith(ICEBERG):
        return text.rpartition(".")[2]
    return (text if "://" in text else str(Path(text).resolve())).rpartition("/")[2].partition(".")[0]


def hidden_base(primaries: Mapping[str, Path]) -> str:
    """Return the end of a sentence about a user's file that hides persia's base configuration; empty if none does."""
    base = primaries[BASE]
    if base.resolve() == (shipped("conf") / f"{BASE}.yaml").resolve():
        return ""
    return f"; {base} hides persia's own {BASE}.yaml: rename it"


def _refuse_overridden(file: Path, values: dict[str, Any], defaults: list[Any]) -> None:
    """Refuse defaults after `_self_`, which would override the file's own settings."""
    for entry in defaults[defaults.index("_self_") + 1 :]:
        group = next(iter(entry), "") if isinstance(entry, dict) else None
        if group is None or group in values:
            what = "the rest of the file" if group is None else f"{group} of this file"
            first = [other for other in defaults if other != "_self_"]
            raise ConfigError(
                f"{file}: {_spelled(entry)} comes after _self_ in its defaults and would override {what}; "
                f"write defaults: [{', '.join(map(_spelled, [*first, '_self_']))}]"
            )


def _spelled(entry: Any) -> str:
    return ", ".join(f"{key}: {value}" for key, value in entry.items()) if isinstance(entry, dict) else str(entry)
