"""Golden samples are read unchanged."""

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from persia_cli.data.read.batch import assemble
from persia_cli.serving.description import GOLDEN, read_description
from persia_cli.serving.golden import Golden, read_golden, require_golden, write_golden
from persia_cli.serving.predictor import Predictor
from tests.support.small_model import write_small_model


@pytest.mark.parametrize(("width", "size"), [(0, 3), (0, 0), (2, 3)])
def test_golden_samples_are_read_as_written(tmp_path: Path, width: int, size: int) -> None:
    model = msgspec.structs.replace(read_description(write_small_model(tmp_path / "model")), dense=width)
    names = [feature.name for feature in model.features]
    dense = np.arange(size * width, dtype=np.float32).reshape(size, width)
    batch = assemble(
        dense=dense,
        labels=np.zeros((size, 2), np.float32),
        weights=None,
        ids=[np.arange(size, dtype=np.uint64)] * len(names),
        offsets=[None] * len(names),
    )
    logits = np.ones((size, 2), np.float32)
    write_golden(tmp_path, names, [output.label for output in model.outputs], Golden(batch, logits))
    with pa.memory_map(str(tmp_path / GOLDEN)) as file:
        assert pyarrow.ipc.open_file(file).schema.field("dense").type == pa.list_(pa.float32(), width)
    found = read_golden(tmp_path, model)
    np.testing.assert_array_equal(found.batch.dense, dense)
    np.testing.assert_array_equal(found.batch.ids, batch.ids)
    np.testing.assert_array_equal(found.logits, logits)


def test_golden_samples_are_predicted_with_zeros_for_missing_rows(tmp_path: Path) -> None:
    predictor = Predictor.open(write_small_model(tmp_path / "shop"), "init")
    golden = read_golden(predictor.folder, predictor.description)
    before = predictor.predict(golden.batch)
    assert before.missing.sum() > 0
    assert not np.array_equal(before.logits, golden.logits)
    require_golden(predictor)
    np.testing.assert_array_equal(predictor.predict(golden.batch).logits, before.logits)
