"""The dataset.yaml of a prepared data set: the meaning of its columns, in a file that a configuration can name."""

from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from persia_cli.config.explain import explain
from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import SparseFeature
from persia_cli.data.prepare_options import PrepareOptions
from persia_cli.data.prescan import SPLIT
from persia_cli.errors import DataError

NAME = "dataset.yaml"
_HEAD = """\
# The meaning of these Parquet files' columns: `persia train dataset=PATH` with the path of this file trains on them.
# Written by `persia recipe prepare`; a relative path is relative to this file.
"""


def describe_dataset(keys: Mapping[str, Any], options: PrepareOptions) -> ParquetDataset:
    """Check a recipe's description of its columns, in the keys of conf/dataset/*.yaml.

    Raises DataError naming the wrong keys.
    """
    values = {**keys, "kind": "parquet", "path": ".", "recipe": options.recipe.name if options.recipe else None}
    if options.split is not None:
        values["split"] = {"kind": "column", "column": SPLIT, "train": "train", "eval": "eval"}
    try:
        return ParquetDataset.model_validate(values)
    except ValidationError as error:
        mistakes = explain(error, ParquetDataset, values).values()
        raise DataError(f"the recipe's description of its columns is wrong: {'; '.join(mistakes)}") from error


def to_yaml(dataset: ParquetDataset) -> str:
    """Return the file's text: the keys that differ from the defaults; a feature is its name alone where that is all."""
    values = dataset.model_dump(mode="json", exclude_defaults=True)
    values["sparse"] = [_short(feature) for feature in dataset.sparse]
    ordered = {"kind": "parquet"} | values
    return _HEAD + yaml.safe_dump(ordered, sort_keys=False, default_flow_style=None, allow_unicode=True, width=110)


def _short(feature: SparseFeature) -> str | dict[str, Any]:
    values = feature.model_dump(mode="json", exclude_defaults=True)
    return feature.name if set(values) == {"name"} else values
