"""The settings that a configuration gives each kind of network, under `networks`.

    networks:
      deepfm: {model: {dim: 11, dropout: 0.1}, optimizer: {embedding: {l2: 1.0e-5}}}
      fm: {model: {dim: 11}}

So one file can carry what was tuned for each of several networks: `model=deepfm` takes the first line of these.
"""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from persia_cli.config.expected import any_of, kinds
from persia_cli.config.explain import did_you_mean, nearest
from persia_cli.config.schema import Run
from persia_cli.config.schema.model import Model
from persia_cli.config.words import Words, key_and_value
from persia_cli.errors import ConfigError

NETWORKS = "networks"
"""The key; a composed run does not have it."""
EXAMPLE = "{deepfm: {model: {dropout: 0.1}}}"


def settle(config: DictConfig, written: Mapping[str, Any], read: Words) -> None:
    """Take `networks` out of a composed configuration, and merge into it the settings of the chosen network.

    It goes before the other keys of the file that has `networks`. The command-line arguments, which were `read`, go
    before it, and so do the keys of a primary file that begins with that one; `written` are this file's own. Raises
    ConfigError if `networks` is not a mapping of kinds of networks to settings.
    """
    table = config.pop(NETWORKS, None)
    if table is None:
        return
    _require_settings(table)
    kind = read.replacements["model"].get("kind") if "model" in read.replacements else config.model.get("kind")
    if kind not in table:
        return
    config.merge_with(table[kind])
    if NETWORKS not in written:
        config.merge_with({key: value for key, value in written.items() if key not in ("defaults", "dataset")})
    for key, value in (key_and_value(override) for override in read.overrides if override.startswith("++")):
        OmegaConf.update(config, key, value, force_add=True)


def _require_settings(table: Any) -> None:
    """Raise ConfigError unless a table has keys with values for kinds of networks that there are."""
    if not isinstance(table, DictConfig):
        raise ConfigError(f"{NETWORKS}: expected settings by kind of network, such as {EXAMPLE}")
    there = kinds(Model)
    for kind, settings in ((str(key), table[key]) for key in table):
        if kind not in there:
            hint = did_you_mean(nearest(kind, there)) or f"; there are {any_of(there, 'and')}"
            raise ConfigError(f"{NETWORKS}.{kind}: no such kind of network{hint}")
        wrong = next((key for key in settings if key not in Run.model_fields), None) if _is_group(settings) else kind
        if wrong is not None or not all(_is_group(value) for value in settings.values()):
            raise ConfigError(f"{NETWORKS}.{kind}: expected keys of a configuration with values, such as {EXAMPLE}")


def _is_group(value: object) -> bool:
    return isinstance(value, DictConfig)
