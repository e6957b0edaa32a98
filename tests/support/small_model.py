"""A small exported model, written without training: two tables of numbers, a list of texts and a number."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.data.read.ids import text_id
from persia_cli.serving.description import NETWORK, ROWS
from persia_cli.serving.fields import RequestFields
from persia_cli.serving.row_writer import TableRules
from tests.support.made_up_model import describe_model, write_rows

NAME, STEP, DIM = "shop", 17, 4
LARGE = 2**63 + 5
"""An id that float64 cannot represent exactly."""
USERS, ITEMS, WORDS = [1, 2, 3, LARGE], list(range(20)), ["lamp", "chair", "sofa"]

LABELS = ["click", "buy"]
FIELDS = RequestFields(
    dense=(DenseFeature(name="price"),),
    sparse=(
        SparseFeature(name="user", ids="integer"), SparseFeature(name="item", ids="integer"),
        SparseFeature(name="words", ids="text"),
    ),
    lists=("words",),
)  # fmt: skip
COLUMNS = {
    "user": [1, 2, 9],
    "item": [4, 5, 6],
    "words": [["lamp"], [], ["sofa", "desk"]],
    "price": [0.5, 1.0, -2.0],
}


def write_small_model(folder: Path, users: Sequence[int] = USERS) -> Path:
    """Write the model into a new folder, with rows for these users; returns the folder."""
    (folder / ROWS).mkdir(parents=True)
    ids = {"user": users, "item": ITEMS, "words": [text_id("words", word) for word in WORDS]}
    rules = [TableRules(name, len(own), 11 + n, 0.05, 2**24, 1, 0, 0) for n, (name, own) in enumerate(ids.items())]
    group = write_rows(folder, DIM, zip(rules, ids.values(), strict=True))
    onnx.save(network(6), folder / NETWORK)
    return describe_model(folder, group, FIELDS, COLUMNS, LABELS, name=NAME, step=STEP, samples=100)


def network(seed: int) -> onnx.ModelProto:
    """Return the dense network with weights that the seed selects."""
    draw = np.random.default_rng(seed)
    width = 3 * DIM + 1
    nodes = [
        helper.make_node("Flatten", ["pooled_0"], ["flat"], axis=1),
        helper.make_node("Concat", ["dense", "flat"], ["all"], axis=1),
        helper.make_node("Gemm", ["all", "weight", "bias"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes, "small",
        [
            helper.make_tensor_value_info("dense", TensorProto.FLOAT, ["n", 1]),
            helper.make_tensor_value_info("pooled_0", TensorProto.FLOAT, ["n", 3, DIM]),
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])],
        [
            numpy_helper.from_array(draw.standard_normal((width, 2)).astype(np.float32), "weight"),
            numpy_helper.from_array(np.array([0.1, -0.2], np.float32), "bias"),
        ],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
