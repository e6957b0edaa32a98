"""The data in an export: samples with their scores, and the features that are lists."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.errors import DataError
from persia_cli.export.artefact import Order, golden_samples, list_features
from persia_cli.observe.saved_run import SavedModel
from tests.support.runs import make_run


def test_a_column_of_lists_is_one_also_if_each_has_one_id(tmp_path: Path) -> None:
    rows = 50
    columns: dict[str, Any] = {name: [0.5] * rows for name in ("d0", "d1")}
    columns |= {"click": [0, 1] * (rows // 2), "a": list(range(rows)), "b": [[each] for each in range(rows)]}
    pq.write_table(pa.table(columns), tmp_path / "samples.parquet")
    assert list_features(make_run(dataset={"path": str(tmp_path / "samples.parquet")})) == {"b"}


def test_a_mistake_in_files_of_verify_does_not_propose_verify(tmp_path: Path) -> None:
    network: Any = None
    run, other = (make_run(dataset={"path": str(tmp_path / name)}) for name in ("gone", "wrong"))
    model = SavedModel(tmp_path, tmp_path, run)
    with pytest.raises(DataError, match="name files that have some by --verify"):
        golden_samples(Order(model, "shop", "float32", run), network)
    with pytest.raises(DataError) as refused:
        golden_samples(Order(model, "shop", "float32", other), network)
    assert "wrong" in str(refused.value)
    assert "--verify" not in str(refused.value)
