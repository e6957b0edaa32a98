"""An exported model in the shape of Criteo's data, written without training: 13 numbers, 26 ids, one click."""

from pathlib import Path

import numpy as np

from persia_cli.config.schema import Ffnn
from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.export.graph import write_network
from persia_cli.model.build import build_model
from persia_cli.model.shape import FeatureShape, InputShape
from persia_cli.serving.description import NETWORK, ROWS
from persia_cli.serving.fields import RequestFields
from persia_cli.serving.row_writer import TableRules
from persia_cli.store.layout import table_salt
from persia_cli.train.inputs import GroupShape
from tests.support.made_up_model import describe_model, write_rows

DENSE, SPARSE, DIM, SAMPLES = 13, 26, 16, 256


def write_click_model(folder: Path, rows: int, hidden: tuple[int, ...]) -> Path:
    """Write a model with this many rows in each of its 26 tables into a new folder; returns the folder."""
    (folder / ROWS).mkdir(parents=True)
    names = [f"C{number + 1}" for number in range(SPARSE)]
    numbers = [f"I{number + 1}" for number in range(DENSE)]
    features = tuple(FeatureShape(name, DIM, "sum") for name in names)
    shape = InputShape(DENSE, features, 1)
    network = build_model(Ffnn(kind="ffnn", dim=DIM, hidden=hidden), shape, seed=0)
    network.eval()
    write_network(network, shape, (GroupShape(DIM, features),), folder / NETWORK, "model.kind=ffnn")
    rules = [TableRules(name, rows, table_salt(name), 0.01, 2**24, 1, 0, 0) for name in names]
    group = write_rows(folder, DIM, [(rule, range(rows)) for rule in rules], deviation=0.1)
    fields = RequestFields(
        dense=tuple(DenseFeature(name=name) for name in numbers),
        sparse=tuple(SparseFeature(name=name, ids="integer") for name in names),
    )
    draw = np.random.default_rng(1)
    columns = {name: draw.random(SAMPLES, np.float32) for name in numbers}
    columns |= {name: draw.integers(0, rows, SAMPLES) for name in names}
    return describe_model(folder, group, fields, columns, ["click"])
