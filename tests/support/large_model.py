"""An exported model of any size, written without training: one table of repeated rows, whose ids can be computed."""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from persia_cli.config.schema.features import SparseFeature
from persia_cli.serving.description import NETWORK, ROWS
from persia_cli.serving.fields import RequestFields
from persia_cli.serving.row_writer import TableRules, planned_group, writing_group
from tests.support.made_up_model import describe_model

DIM, SALT = 64, 11
BLOCK = 2**18
"""Number of rows that are written at a time, with the same values."""


def write_large_model(folder: Path, rows: int) -> Path:
    """Write the model, of a table of `rows` rows, into a new folder; returns the folder."""
    (folder / ROWS).mkdir(parents=True)
    group = planned_group(0, DIM, "float32", "float32", [TableRules("item", rows, SALT, 0.05, 2**24, 1, 0, 0)])
    values = block_of_rows()
    with writing_group(folder, group) as writer:
        for first in range(0, rows, BLOCK):
            last = min(first + BLOCK, rows)
            writer.add(0, _keys(np.arange(first, last, dtype=np.uint64), rows), values[: last - first])
    _write_network(folder / NETWORK)
    fields = RequestFields(dense=(), sparse=(SparseFeature(name="item", ids="integer"),))
    places = np.arange(0, rows, max(1, rows // 16))
    return describe_model(folder, group, fields, {"item": ids_of(places, rows)}, ["click"], name="large")


def block_of_rows() -> NDArray[np.float32]:
    """The rows of a block."""
    return np.random.default_rng(5).standard_normal((BLOCK, DIM)).astype(np.float32)


def ids_of(places: NDArray[np.int64], rows: int) -> NDArray[np.uint64]:
    """The ids of some rows, by their position."""
    words = _keys(places.astype(np.uint64), rows)
    for shift, factor in ((31, 0x319642B2D24D8EC3), (27, 0x96DE1B173F119089), (30, 1)):  # splitmix64's end, backwards
        words = words ^ (words >> np.uint64(shift)) ^ (words >> np.uint64(2 * shift))
        words = words * np.uint64(factor)
    return words ^ np.uint64(SALT)


def logits_of(places: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the network's logits of some rows."""
    return (block_of_rows()[places % BLOCK].astype(np.float64) @ _weights()).astype(np.float32)


def _keys(places: NDArray[np.uint64], rows: int) -> NDArray[np.uint64]:
    """Keys in their order, with the mean distance of the keys of any ids."""
    return places * np.uint64(2**64 // rows) + places % np.uint64(1021)


def _weights() -> NDArray[np.float64]:
    return (np.linspace(-1.0, 1.0, DIM) / DIM).astype(np.float32).astype(np.float64)[:, None]


def _write_network(path: Path) -> None:
    nodes = [
        helper.make_node("Flatten", ["pooled_0"], ["flat"], axis=1),
        helper.make_node("MatMul", ["flat", "weight"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes, "large",
        [helper.make_tensor_value_info("pooled_0", TensorProto.FLOAT, ["n", 1, DIM])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 1])],
        [numpy_helper.from_array(_weights().astype(np.float32), "weight")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
