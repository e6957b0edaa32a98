"""The place that sets a key of a configuration: a file with its line, or an argument."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from persia_cli.config import available
from persia_cli.config.compose import ConfigRequest, dataset_file, has_default, hydra_over, read_request
from persia_cli.config.explain import spell
from persia_cli.config.files import default_name
from persia_cli.config.overrides import key_and_value
from persia_cli.storage.addresses import local_path


class Origin(NamedTuple):
    """A place that sets a key, and its value there."""

    place: str
    value: Any


@dataclass(frozen=True, slots=True)
class Layer:
    """Values that are merged over those of the layers below."""

    prefix: str
    """The key of the values; empty for a whole configuration."""
    values: Any
    source: str
    file: Path | None = None
    replaces: bool = False
    """True: the values replace the others below their key."""


def layers_of(arguments: Sequence[str], folders: Sequence[Path] = ()) -> list[Layer]:
    """Return the layers of the configuration that these arguments give, each above those before it."""
    request = read_request(arguments, folders)
    return [*_files(request), *_arguments(request)]


def origin(key: str, layers: Sequence[Layer]) -> Origin | None:
    """Return the place that sets a key; None if none does, so that it has its default."""
    names, groups = key.split("."), 0  # so many names are groups in a layer above, which hides short forms of them
    for layer in reversed(layers):
        start = depth = len(layer.prefix.split(".")) if layer.prefix else 0
        if names[:start] != layer.prefix.split(".")[:start]:
            continue
        value = layer.values
        while depth < len(names) and isinstance(value, dict) and names[depth] in value:
            value, depth = value[names[depth]], depth + 1
        if depth == len(names):
            return None if layer.source.startswith("~") else Origin(_source(layer, names[start:]), value)
        if not isinstance(value, dict):  # null, or a short form of the group, such as init_from=runs/a
            is_hidden = value is None or depth <= groups
            return None if is_hidden else Origin(_source(layer, names[start:depth]), value)
        if layer.replaces:
            return None
        groups = max(groups, depth)
    return None


def _files(request: ConfigRequest) -> Iterator[Layer]:
    """Yield the layers that files have, from the first one that is read to the primary configuration."""
    described = dataset_file(request)
    layers = [layer for layer in _defaults(request) if not (described and layer.prefix == "dataset")]
    if described:
        layers.append(_layer("dataset", local_path(described), ""))
    yield from layers
    if (named := default_name(request.file, request.written, request.overrides.dataset_file)) is not None:
        yield Layer("name", *named)


def _defaults(request: ConfigRequest) -> Iterator[Layer]:
    """Yield the configuration files and options of groups that Hydra composes, in its order."""
    with hydra_over(request.folders):
        options = [override for override in request.overrides.hydra if not override.startswith("+")]
        chosen = [option if has_default(request.name, option) else f"+{option}" for option in options]
        loader = GlobalHydra.instance().config_loader()
        for default in loader.compute_defaults_list(request.name, chosen, RunMode.RUN).defaults:
            path = default.config_path or ""
            if (file := available.file_of(path, request.folders)) is not None:
                yield _layer(default.package or "", file, path.replace("/", "=") if path.count("/") == 1 else "")


def _layer(prefix: str, file: Path, option: str) -> Layer:
    values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    if isinstance(values.get("dataset"), str):  # a file, which has its own layer
        del values["dataset"]
    return Layer(prefix, values, f"{option}: {file}" if option else str(file), file)


def _arguments(request: ConfigRequest) -> Iterator[Layer]:
    """Yield the layers that arguments have, in the order in which they apply."""
    for override in request.overrides.hydra:
        if override.startswith("++"):
            yield Layer(*key_and_value(override), override.lstrip("+"))
    for key, value in request.overrides.replacements.items():
        yield Layer(key, value, f"{key}={spell(value)}", replaces=isinstance(value, dict))
    for key in request.overrides.deletions:
        yield Layer(key, None, f"~{key}", replaces=True)


def _source(layer: Layer, names: Sequence[str]) -> str:
    """Return the place of a key, with its line in a file."""
    if layer.file is None:
        return layer.source
    node: Any = yaml.compose(layer.file.read_text(encoding="utf-8"))
    line = 1
    for name in names:
        line, node = next((key.start_mark.line + 1, value) for key, value in node.value if key.value == name)
    return f"{layer.source}, line {line}"
