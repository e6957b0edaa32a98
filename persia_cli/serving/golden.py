"""Golden samples: some samples as the network's input, and their scores by the training code.

`golden.arrow` has the columns of `persia_cli.serving.sample_table`, and `logit:LABEL`.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc
from numpy.typing import NDArray

from persia_cli.data.read.batch import Batch
from persia_cli.data.read.predictions import predictions
from persia_cli.errors import CheckpointError, one_line
from persia_cli.serving.description import GOLDEN, Form, ModelDescription
from persia_cli.serving.predictor import Predictor
from persia_cli.serving.sample_table import batch_of_table, column_of, columns_of_batch

DIFFERENCE: dict[Form, float] = {"float32": 5e-6, "bfloat16": 0.01, "float16": 0.001, "int8": 0.02, "int4": 0.2}
"""Maximum difference of a prediction to that of the training code, by the dtype of rows; above 1, relative."""


class Golden(NamedTuple):
    """Samples, and the logits float32 [n, tasks] of the training code."""

    batch: Batch
    logits: NDArray[np.float32]


def write_golden(folder: Path, features: list[str], labels: list[str], golden: Golden) -> None:
    """Write golden samples, as an Arrow IPC file."""
    columns = columns_of_batch(golden.batch, features)
    for task, label in enumerate(labels):
        columns[f"logit:{label}"] = pa.array(np.ascontiguousarray(golden.logits[:, task]))
    table = pa.table(columns)
    with pyarrow.ipc.new_file(folder / GOLDEN, table.schema) as writer:
        writer.write_table(table)


def read_golden(folder: Path, description: ModelDescription) -> Golden:
    """Return the golden samples of an exported model; raises CheckpointError for a file without them."""
    path = folder / GOLDEN
    try:
        with pa.memory_map(str(path)) as file:
            table = pyarrow.ipc.open_file(file).read_all().combine_chunks()
        features, tasks = [feature.name for feature in description.features], len(description.outputs)
        batch = batch_of_table(table, features, description.dense, tasks)
        logits = [column_of(table, f"logit:{output.label}").to_numpy() for output in description.outputs]
        return Golden(batch, np.stack([np.array(each, np.float32) for each in logits], axis=1))
    except (OSError, KeyError, ValueError, AttributeError, pa.ArrowException) as error:
        raise CheckpointError(f"{path} has no golden samples of this model: {one_line(error)}; export again") from error


def require_golden(predictor: Predictor) -> None:
    """Predict the golden samples of an exported model; raises CheckpointError if a score is not the training code's.

    This also loads everything that is loaded when it is first needed.
    """
    golden, model = read_golden(predictor.folder, predictor.description), predictor.description
    if not golden.batch.size:
        return
    allowed = max((DIFFERENCE[group.form] for group in model.groups), default=DIFFERENCE["float32"])
    with predictor.zeros_for_missing():
        found = predictor.predict(golden.batch).logits
    for task, output in enumerate(model.outputs):
        p, q = (predictions(each[:, task].astype(np.float64), output.link) for each in (golden.logits, found))
        difference = float((np.abs(p - q) / np.maximum(1.0, np.abs(p))).max())
        if not difference <= allowed:
            raise CheckpointError(
                f"{predictor.folder} does not predict {output.name} of its golden samples as the training code does: "
                f"the difference is up to {difference:.3g}, and {allowed:.0e} is allowed; export the run again"
            )
