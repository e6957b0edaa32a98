"""Golden samples: some samples as the network's input, and their scores by the training code.

`golden.arrow` has the columns of `persia_cli.serving.sample_table`, and `logit:LABEL`. An example of a request is made
of them.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc
from numpy.typing import NDArray

from persia_cli.data.read.batch import Batch
from persia_cli.data.read.ids import NULL_ID
from persia_cli.data.read.predictions import predictions
from persia_cli.errors import CheckpointError, DataError, one_line
from persia_cli.serving.description import GOLDEN, Form, ModelDescription
from persia_cli.serving.fields import RequestFields
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
        return Golden(batch, np.stack([np.array(values, np.float32) for values in logits], axis=1))
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
        logits_here = predictor.predict(golden.batch).logits
    for task, output in enumerate(model.outputs):
        p, q = (predictions(logits[:, task].astype(np.float64), output.link) for logits in (golden.logits, logits_here))
        difference = float((np.abs(p - q) / np.maximum(1.0, np.abs(p))).max())
        if not difference <= allowed:
            raise CheckpointError(
                f"{predictor.folder} does not predict {output.name} of its golden samples as the training code does: "
                f"the difference is up to {difference:.3g}, and {allowed:.0e} is allowed; export the run again"
            )


EXACT = 2**53
"""Largest integer that JSON numbers represent exactly in all programs."""


def example_row(fields: RequestFields, golden: Golden) -> dict[str, Any]:
    """Return a row that can be predicted: that of the data set's files, if there is one.

    Other fields are those of the first golden sample, as far as its ids and numbers determine them. They do not
    determine texts, or fields from which columns are computed. So texts are null, which is a missing value in training,
    lists are empty (of CSV files, which have no lists, null), numbers are 0, and all times are the same.
    """
    raw, batch = fields.raw_by_column(), golden.batch
    single = () if fields.csv is None else fields.csv.columns
    row: dict[str, Any] = {}
    for name, datatype, shape in fields.inputs():
        plain = fields.times.get(name, None if datatype == "BYTES" else 0)
        row[name] = plain if len(shape) == 1 else [None] if name in single else []
    if not batch.size:
        return _with_example(row, fields)
    for number, feature in enumerate(fields.sparse):
        if feature.column_name in raw or feature.buckets is not None or feature.ids in ("text", "time"):
            continue
        first, last = batch.offsets[number * batch.size : number * batch.size + 2].tolist()
        ids = [None if id_ == NULL_ID else id_ for id_ in batch.ids[first:last].tolist()]
        if max((id_ for id_ in ids if id_ is not None), default=0) > EXACT:
            if feature.ids is None:  # its texts would be hashed
                continue
            ids = [id_ if id_ is None else str(id_) for id_ in ids]
        row[feature.column_name] = ids if feature.name in fields.lists else ids[0] if ids else None
    position = 0
    for dense_feature in fields.dense:
        is_plain = dense_feature.transform is None and dense_feature.times_of is None
        if dense_feature.name not in raw and is_plain:
            values = [float(str(value)) for value in batch.dense[0, position : position + dense_feature.inputs]]
            row[dense_feature.name] = values[0] if dense_feature.width is None else values
        position += dense_feature.inputs
    return _with_example(row, fields)


def _with_example(row: dict[str, Any], fields: RequestFields) -> dict[str, Any]:
    """Return a row with the values of the fields' example, if it can be read then."""
    changed = _with_times(row | dict(fields.example), fields)
    with suppress(DataError):
        fields.batch({name: [value] for name, value in changed.items()})
        return changed
    return _with_times(row, fields)


def _with_times(row: dict[str, Any], fields: RequestFields) -> dict[str, Any]:
    """Return a row whose lists of times are as long as the lists of their elements."""
    columns = {feature.name: feature.column_name for feature in fields.sparse}
    times = {
        each.name: [row[str(each.until)]] * len(row[columns[str(each.times_of)]]) for each in fields.times_of_lists
    }
    return row | times
