"""An exported model in the shape of Criteo's data, written without training: 13 numbers, 26 ids, one click."""

from pathlib import Path

import numpy as np

from persia_cli import __version__
from persia_cli.config.schema import Ffnn
from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.export.graph import write_network
from persia_cli.model.build import build_model
from persia_cli.model.shape import FeatureShape, InputShape
from persia_cli.serving.description import (
    FEATURES,
    FORMAT_VERSION,
    GOLDEN,
    NETWORK,
    ROWS,
    FrozenFeature,
    FrozenGroup,
    ModelDescription,
    ModelInput,
    ModelOutput,
    note_of,
    write_description,
)  # fmt: skip
from persia_cli.serving.fields import RequestFields, write_fields
from persia_cli.serving.golden import Golden, write_golden
from persia_cli.serving.predictor import Predictor
from persia_cli.serving.row_writer import TableRules, planned_group, writing_group
from persia_cli.store.layout import table_salt
from persia_cli.train.inputs import GroupShape
from tests import naive

DENSE, SPARSE, DIM, SAMPLES = 13, 26, 16, 256


def write_click_model(folder: Path, rows: int, hidden: tuple[int, ...]) -> Path:
    """Write a model with this many rows in each of its 26 tables into a new folder; returns the folder."""
    (folder / ROWS).mkdir(parents=True)
    names = [f"C{number + 1}" for number in range(SPARSE)]
    features = tuple(FeatureShape(name, DIM, "sum") for name in names)
    shape = InputShape(DENSE, features, 1)
    network = build_model(Ffnn(kind="ffnn", dim=DIM, hidden=hidden), shape, seed=0)
    network.eval()
    write_network(network, shape, (GroupShape(DIM, features),), folder / NETWORK, "model.kind=ffnn")
    group = _write_rows(folder, names, rows)
    fields = RequestFields(
        dense=tuple(DenseFeature(name=f"I{number + 1}") for number in range(DENSE)),
        sparse=tuple(SparseFeature(name=name, ids="integer") for name in names),
    )
    write_fields(folder, fields)
    draw = np.random.default_rng(1)
    columns = {f"I{number + 1}": draw.random(SAMPLES, np.float32) for number in range(DENSE)}
    batch = fields.batch(columns | {name: draw.integers(0, rows, SAMPLES) for name in names})
    for logits in (np.zeros((SAMPLES, 1), np.float32), None):
        if logits is None:
            logits = Predictor.open(folder).predict(batch).logits
        write_golden(folder, names, ["click"], Golden(batch, logits))
        description = ModelDescription(
            format_version=FORMAT_VERSION, persia_version=__version__, name=folder.name, run="made", step=1, samples=1,
            seed=7, network="ffnn", dense=DENSE,
            features=[FrozenFeature(name, 0, name, "sum") for name in names],
            groups=[group],
            inputs=[ModelInput(*each) for each in fields.inputs()],
            outputs=[ModelOutput("click_probability", "click", "logistic")],
            files=[note_of(folder, path) for path in (NETWORK, group.index, group.values, FEATURES, GOLDEN)],
        )  # fmt: skip
        write_description(folder, description)
    return folder


def _write_rows(folder: Path, names: list[str], rows: int) -> FrozenGroup:
    rules = [TableRules(name, rows, table_salt(name), 0.01, 2**24, 1, 0, 0) for name in names]
    group, draw = planned_group(0, DIM, "float32", "float32", rules), np.random.default_rng(5)
    with writing_group(folder, group) as writer:
        for number, rule in enumerate(rules):
            keys = np.sort(np.array(naive.keys_of(rule.salt, range(rows)), np.uint64))
            writer.add(number, keys, draw.standard_normal((rows, DIM), np.float32) * np.float32(0.1))
    return group
