"""Exports: unchanged rows, lists, bounds of scores, and the script of plain torch."""

import json
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from persia_cli.config.record import SAMPLES
from persia_cli.data.read.scan import scan
from persia_cli.errors import CheckpointError, PersiaError
from persia_cli.export import plain
from persia_cli.export.artefact import Order, write_artefact
from persia_cli.export.output import Output
from persia_cli.export.plain import write_plain
from persia_cli.export.verification import LabelProof, Proof
from persia_cli.observe.kept_samples import encoded_samples, read_samples
from persia_cli.observe.saved_run import find_model
from persia_cli.serving.description import Form
from tests.support.runs import make_run
from tests.support.saved_rows import made_up_rows
from tests.unit.checkpoint.made_up import write_sorted


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_changed_rows_are_not_exported(tmp_path: Path, form: str) -> None:
    checkpoint = write_sorted(tmp_path / "run", 5, made_up_rows(2000, 8, 5, ["a", "b"]), files=2)
    damaged = sorted((checkpoint / "embeddings").iterdir())[1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    model, place = find_model(tmp_path / "run"), Output(tmp_path / "shop")
    network: Any = None  # rows are compared before it is used

    def export() -> None:
        if form == "onnx":
            write_artefact(Order(model, "shop", "float32"), place, network)
        else:
            write_plain(model, place, network, lambda what, done, of: None)

    with pytest.raises(CheckpointError, match=f"{damaged.name} has changed since it was saved"):
        export()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_keeps_which_columns_have_lists_and_a_row_as_an_example(tmp_path: Path) -> None:
    rows = 50
    columns: dict[str, Any] = {name: [0.5] * rows for name in ("d0", "d1")}
    columns |= {"click": [0, 1] * (rows // 2), "a": ["lamp"] * rows, "b": [[each] for each in range(rows)]}
    columns["d1"] = pa.array([0.1] * rows, pa.float32())
    pq.write_table(pa.table(columns), tmp_path / "samples.parquet")
    run = make_run(dataset={"path": str(tmp_path / "samples.parquet")})
    (tmp_path / SAMPLES).write_bytes(encoded_samples(run, scan(run.dataset)))
    (tmp_path / "samples.parquet").unlink()
    fields = read_samples(run, tmp_path / SAMPLES).fields
    assert fields.lists == ("b",)
    assert fields.example == {"a": "lamp", "b": [0], "d0": 0.5, "d1": 0.1}


def test_an_example_has_no_rare_text_of_the_data(tmp_path: Path) -> None:
    columns: dict[str, Any] = {name: [0.5] * 50 for name in ("d0", "d1")}
    columns |= {"click": [0, 1] * 25, "a": [f"person {number}" for number in range(50)], "b": [1] * 50}
    pq.write_table(pa.table(columns), tmp_path / "samples.parquet")
    run = make_run(dataset={"path": str(tmp_path / "samples.parquet")})
    assert b"person" not in encoded_samples(run, scan(run.dataset))


def proof(difference: float, pairs: float) -> Proof:
    """The result for 200 samples whose AUC differs by so much."""
    return Proof(200, [LabelProof("click", 0.0, (0.7, 0.7 + difference), pairs)])


def test_a_pair_in_another_order_is_allowed_where_there_are_few() -> None:
    proof(1e-4, pairs=1e4).require("float32")
    with pytest.raises(PersiaError, match="by 4e-04"):
        proof(1e-3, pairs=1e4).require("float32")


@pytest.mark.parametrize(("form", "remedy"), [("float32", "do not serve this export"), ("int8", "with more bits")])
def test_a_greater_difference_of_auc_is_refused_with_a_remedy(form: Form, remedy: str) -> None:
    with pytest.raises(PersiaError, match=remedy):
        proof(1e-3, pairs=1e9).require(form)


FEATURE = {"name": "a", "column": "a", "group": 0, "dim": 2, "max_length": None, "rounds": 0, "size": 0}


def test_the_script_scores_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = ModuleType("network")
    monkeypatch.setattr(network, "Network", lambda: lambda dense, pooled: pooled.sum((1, 2))[:, None], raising=False)
    monkeypatch.setitem(sys.modules, "network", network)
    vectors = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"id": pa.array([5, 6], pa.uint64()), "vector": vectors}), tmp_path / "0.parquet")
    feature = FEATURE | {"pooling": "sum", "table": "0.parquet"}
    (tmp_path / "model.json").write_text(json.dumps({"labels": ["click"], "features": [feature]}))
    (tmp_path / "predict.py").write_text(plain.SCRIPT.read_text())
    scores = runpy.run_path(str(tmp_path / "predict.py"))["scores"]
    assert scores(torch.zeros(2, 3), {"a": [[5], [5, 6]]}).tolist() == [[3.0], [10.0]]
    assert scores(torch.zeros(0, 3), {"a": []}).shape == (0, 1)
