"""Composition of a checked Run from command-line arguments: Hydra composes, pydantic validates."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from persia_cli.config import available, expected, replicas
from persia_cli.config.explain import did_you_mean, explain, nearest, needs_a_value, spell, unknown_key
from persia_cli.config.files import BASE, default_name, hidden_base, names_a_file, read_dataset_file, read_primary
from persia_cli.config.hydra_errors import composition_error, first_line
from persia_cli.config.overrides import DEFAULT_CONF, Overrides, key_and_value, parse_overrides
from persia_cli.config.schema import Run
from persia_cli.errors import ConfigError
from persia_cli.shipped import shipped
from persia_cli.storage.addresses import local_path


@dataclass(frozen=True)
class ConfigRequest:
    """The arguments of a job, and the primary configuration that they name."""

    overrides: Overrides
    name: str
    file: Path
    written: Mapping[str, Any]
    """The content of the file."""
    primaries: Mapping[str, Path]
    folders: Sequence[Path]
    """Those of the user, which are searched first."""


def read_request(arguments: Sequence[str], folders: Sequence[Path] = ()) -> ConfigRequest:
    """Read arguments and the primary configuration; raises ConfigError if there is no such configuration."""
    folders = [*_folder_of_conf(arguments), *(local_path(folder) for folder in folders)]
    _refuse_missing(folders)
    primaries = available.primaries(folders)
    overrides = parse_overrides(
        arguments, list(primaries), {group: list(names) for group, names in available.groups(folders).items()}
    )
    wrong = dict(overrides.wrong)
    name = Path(overrides.conf).stem if _is_path(overrides.conf) else overrides.conf
    if name not in primaries and "conf" not in wrong:
        there = f"; there are {expected.any_of(list(primaries), 'and')}"
        hint = did_you_mean(nearest(name, list(primaries))) or there
        wrong["conf"] = f"conf={name}: no such configuration{hint}"
    if "conf" in wrong:
        raise ConfigError("\n".join(wrong.values()))
    written = read_primary(primaries[name])
    if "dataset" not in written and written.keys() & {"path", "labels"}:
        raise ConfigError(f"conf={overrides.conf}: this file describes a data set; use it as dataset={primaries[name]}")
    return ConfigRequest(
        _with_described_data(overrides, written, primaries), name, primaries[name], written, primaries, folders
    )


def compose_run(arguments: Sequence[str], folders: Sequence[Path] = ()) -> Run:
    """Compose and check a job from `conf=NAME` and `KEY=VALUE` arguments.

    `folders` are the user's, searched before the built-in one. Raises ConfigError naming every mistake, one per line.
    """
    request = read_request(arguments, folders)
    overrides, wrong = request.overrides, dict(request.overrides.wrong)
    try:
        config = _compose_dataset(request)
    except RecursionError:
        hint = hidden_base(request.primaries) or "; begin the file with defaults: [base, _self_]"
        raise ConfigError(f"{request.file}: its defaults refer back to itself{hint}") from None
    OmegaConf.set_struct(config, False)
    replicas.register()
    named = default_name(request.file, request.written, overrides.dataset_file)
    if named is not None and not any(override.startswith("++name=") for override in overrides.hydra):
        config["name"], _ = named
    for key, mapping in overrides.replacements.items():
        OmegaConf.update(config, key, mapping, merge=False, force_add=True)
        for override in overrides.hydra:
            if override.startswith(f"++{key}."):
                OmegaConf.update(config, *key_and_value(override), force_add=True)
    values = _plain(config, "", wrong)
    _delete(values, overrides.deletions, wrong)
    try:
        run = Run.model_validate(values)
    except ValidationError as error:
        mistakes = explain(error, Run, values)
        wrong |= {key: sentence for key, sentence in mistakes.items() if not _follows(key, wrong)}
    if wrong:
        raise ConfigError("\n".join(_without_base(wrong, request.file, hidden_base(request.primaries))))
    return run


def _with_described_data(overrides: Overrides, written: Mapping[str, Any], primaries: Mapping[str, Path]) -> Overrides:
    """Return the arguments with `dataset=parquet` for a file that describes its own data in place of base's data."""
    is_chosen = any(override.startswith("dataset=") for override in overrides.hydra)
    if is_chosen or not _replaces_base_data(written, primaries, 10):
        return overrides
    return replace(overrides, hydra=("dataset=parquet", *overrides.hydra))


def _replaces_base_data(written: Mapping[str, Any], primaries: Mapping[str, Path], depth: int) -> bool:
    """Return True if a file describes its own data and begins with base, or begins with such a file."""
    dataset, defaults = written.get("dataset"), written.get("defaults")
    if not isinstance(defaults, list) or not depth:
        return False
    if any("dataset" in key for entry in defaults if isinstance(entry, dict) for key in entry):
        return False
    if BASE in defaults:
        keys = dataset if isinstance(dataset, dict) else {}
        return {"path", "labels"} <= keys.keys() and keys.get("kind", "parquet") == "parquet"
    first = next((entry for entry in defaults if isinstance(entry, str) and entry in primaries), None)
    return first is not None and _replaces_base_data(read_primary(primaries[first]), primaries, depth - 1)


def dataset_file(request: ConfigRequest) -> str | None:
    """Return the file that describes the data set, if the arguments, or else the configuration, name one."""
    dataset = request.written.get("dataset")
    is_chosen = any(override.startswith("dataset=") for override in request.overrides.hydra)
    return request.overrides.dataset_file or (str(dataset) if names_a_file(dataset) and not is_chosen else None)


def _compose_dataset(request: ConfigRequest) -> DictConfig:
    """Compose; where the arguments, or the configuration, name a dataset file, use its contents."""
    name, file, overrides, folders = request.name, request.file, request.overrides, request.folders
    described = dataset_file(request)
    if described is None and not names_a_file(request.written.get("dataset")):
        return _compose(name, file, overrides.hydra, folders)
    keys = [override for override in overrides.hydra if override.startswith("++dataset.")]
    options = [override for override in overrides.hydra if override.startswith("dataset=")]
    others = [override for override in overrides.hydra if override not in (*keys, *options)]
    config = _compose(name, file, others, folders)
    OmegaConf.set_struct(config, False)
    if described is None:
        config["dataset"] = _compose(DEFAULT_CONF, file, [*options, *keys], folders)["dataset"]
        return config
    config["dataset"] = read_dataset_file(described)
    for key, value in map(key_and_value, keys):
        OmegaConf.update(config, key, value, force_add=True)
    return config


def _compose(name: str, file: Path, overrides: Sequence[str], folders: Sequence[Path]) -> DictConfig:
    with hydra_over(folders), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # defaults without _self_: the file itself comes last, as intended
        try:
            try:
                return compose(name, overrides=list(overrides))
            except ConfigCompositionException:
                return _compose_spelled_out(name, overrides)
        except RecursionError:
            raise
        except Exception as error:
            raise ConfigError(composition_error(file, error)) from error


def _compose_spelled_out(name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a file that spells groups out instead of naming an option, as the record of a run does.

    Hydra finds no default to override there, so a chosen option replaces the whole group.
    """
    chosen = {
        group: option
        for group, _, option in (override.partition("=") for override in overrides if not override.startswith("+"))
        if not has_default(name, f"{group}={option}")
    }
    config = compose(name, overrides=[override for override in overrides if override.partition("=")[0] not in chosen])
    OmegaConf.set_struct(config, False)
    for group, option in chosen.items():
        keys = [override for override in overrides if override.startswith(f"++{group}.")]
        config[group] = compose(overrides=[f"+{group}={option}", *keys])[group]
    return config


def has_default(name: str, override: str) -> bool:
    try:
        compose(name, overrides=[override])
    except ConfigCompositionException as error:
        return "Could not override" not in str(error)
    return True


def _delete(values: dict[str, Any], keys: Sequence[str], wrong: dict[str, str]) -> None:
    """Remove keys from the values."""
    for key in keys:
        holder: Any = values
        *groups, leaf = key.split(".")
        for group in groups:
            holder = holder.get(group) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and leaf in holder:
            del holder[leaf]
        else:
            wrong[f"~{key}"] = f"~{key}: {unknown_key(key, Run, values)}"


def _without_base(wrong: Mapping[str, str], file: Path, hint: str) -> list[str]:
    """Return the sentences; if most groups are missing, one sentence explains how a configuration begins."""
    groups = [
        name for name, field in Run.model_fields.items() if field.is_required() and name in wrong and name != "name"
    ]
    if len(groups) < 4:
        return list(wrong.values())
    start = f"{file}: {expected.any_of(groups, 'and')} are missing"
    start += hint or "; begin the file with defaults: [base, _self_]"
    return [start, *(sentence for key, sentence in wrong.items() if key not in groups)]


def _plain(node: DictConfig | ListConfig, path: str, wrong: dict[str, str]) -> Any:
    """Return plain values; a value that is missing or cannot be resolved adds a sentence to `wrong`, by key path."""
    if isinstance(node, DictConfig):
        return {str(key): _value(node, key, f"{path}.{key!s}".lstrip("."), wrong) for key in node}
    return [_value(node, index, f"{path}[{index}]", wrong) for index in range(len(node))]


def _value(node: Any, key: Any, path: str, wrong: dict[str, str]) -> Any:
    if OmegaConf.is_missing(node, key):
        field = dict(expected.keys(Run)).get(path)
        if field is None:
            return "???"
        wrong[path] = needs_a_value(path, field.annotation)
        return None
    try:
        value = node[key]
    except OmegaConfBaseException as error:
        written: Any = OmegaConf.to_container(node, resolve=False)
        wrong[path] = f"{path}={spell(written[key])}: cannot be resolved, {first_line(error)}"
        return None
    return _plain(value, path, wrong) if isinstance(value, DictConfig | ListConfig) else value


def _follows(key: str, wrong: Mapping[str, str]) -> bool:
    """Return True if a mistake at `key` is reported already, or follows from one that is."""
    return any(key == other or key.startswith((f"{other}.", f"{other}[")) for other in wrong)


def _is_path(conf: str) -> bool:
    return conf.endswith((".yaml", ".yml")) or "/" in conf


def _folder_of_conf(arguments: Sequence[str]) -> list[Path]:
    """Return the folder of a configuration given by path; raises ConfigError if there is no such file."""
    paths = [conf for argument in arguments if (conf := argument.removeprefix("conf=")) != argument and _is_path(conf)]
    for path in paths:
        if not local_path(path).is_file():
            raise ConfigError(f"conf={path}: there is no such file")
        if not path.endswith(".yaml"):
            raise ConfigError(f"conf={path}: the name of a configuration file must end in .yaml")
    return [local_path(path).parent for path in paths]


def _refuse_missing(folders: Sequence[Path]) -> None:
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"--conf-dir {folder}: there is no such folder")


class UserFolders(SearchPathPlugin):
    """A Hydra plugin that puts the user's folders before the built-in one."""

    folders: ClassVar[Sequence[Path]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the user's folders; Hydra calls this when it is initialised."""
        for folder in reversed(self.folders):
            search_path.prepend("user", f"file://{folder}")


@contextmanager
def hydra_over(folders: Sequence[Path]) -> Iterator[None]:
    """Make Hydra search these folders and then the built-in one while the context lasts."""
    Plugins.instance().register(UserFolders)
    UserFolders.folders = [folder.resolve() for folder in folders]
    try:
        with initialize_config_dir(str(shipped("conf").resolve()), job_name="persia", version_base="1.3"):
            yield
    finally:
        UserFolders.folders = ()
