"""The files of an exported model that is written without training: rows, golden samples and its description."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.serving.description import (
    FEATURES,
    FORMAT_VERSION,
    GOLDEN,
    NETWORK,
    FrozenFeature,
    FrozenGroup,
    ModelDescription,
    ModelInput,
    ModelOutput,
    note_of,
    write_description,
)
from persia_cli.serving.fields import RequestFields, write_fields
from persia_cli.serving.golden import Golden, write_golden
from persia_cli.serving.predictor import Predictor
from persia_cli.serving.row_writer import TableRules, planned_group, writing_group
from persia_cli.version import __version__
from tests import naive


def write_rows(
    folder: Path, dim: int, tables: Iterable[tuple[TableRules, Sequence[int]]], deviation: float = 1.0
) -> FrozenGroup:
    """Write rows of normal numbers for the ids of each table, all in one group."""
    tables = list(tables)
    group, draw = planned_group(0, dim, "float32", "float32", [rules for rules, _ in tables]), np.random.default_rng(5)
    with writing_group(folder, group) as writer:
        for number, (rules, ids) in enumerate(tables):
            keys = np.sort(np.array(naive.keys_of(rules.salt, ids), np.uint64))
            rows: NDArray[np.float32] = draw.standard_normal((keys.size, dim)).astype(np.float32)
            writer.add(number, keys, rows * np.float32(deviation))
    return group


def describe_model(
    folder: Path, group: FrozenGroup, fields: RequestFields, columns: Mapping[str, Any], labels: Sequence[str],
    **known: Any,
) -> Path:  # fmt: skip
    """Write fields, golden samples and description next to rows and network; returns the folder.

    Golden scores are the model's own, so it is described twice: before it can be opened, and with them.
    """
    write_fields(folder, fields)
    batch, names = fields.batch(columns), [feature.name for feature in fields.sparse]
    for logits in (np.zeros((batch.size, len(labels)), np.float32), None):
        if logits is None:
            logits = Predictor.open(folder).predict(batch).logits
        write_golden(folder, names, list(labels), Golden(batch, logits))
        description = ModelDescription(
            **{"name": folder.name, "step": 1, "samples": 1} | known,
            format_version=FORMAT_VERSION, persia_version=__version__, run="made", seed=7, network="ffnn",
            dense=len(fields.dense),
            features=[FrozenFeature(name, 0, name, "sum") for name in names],
            groups=[group],
            inputs=[ModelInput(*each) for each in fields.inputs()],
            outputs=[ModelOutput(f"{label}_probability", label, "logistic") for label in labels],
            files=[note_of(folder, path) for path in (NETWORK, group.index, group.values, FEATURES, GOLDEN)],
        )  # fmt: skip
        write_description(folder, description)
    return folder
