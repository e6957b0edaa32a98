"""The dataset.yaml of a prepared data set: the meaning of its columns, in a file that a configuration can name."""

from typing import Any

import yaml

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import SparseFeature

NAME = "dataset.yaml"
_HEAD = """\
# The meaning of these Parquet files' columns: `persia train dataset=PATH` with the path of this file trains on them.
# Written by `persia recipe prepare`; a relative path is relative to this file.
"""


def to_yaml(dataset: ParquetDataset) -> str:
    """Return the file's text: the keys that differ from the defaults; a feature is its name alone where that is all."""
    values = dataset.model_dump(mode="json", exclude_defaults=True)
    values["sparse"] = [_short(feature) for feature in dataset.sparse]
    ordered = {"kind": "parquet"} | values
    return _HEAD + yaml.safe_dump(ordered, sort_keys=False, default_flow_style=None, allow_unicode=True, width=110)


def _short(feature: SparseFeature) -> str | dict[str, Any]:
    values = feature.model_dump(mode="json", exclude_defaults=True)
    return feature.name if set(values) == {"name"} else values
