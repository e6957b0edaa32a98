"""The export to plain torch, without a run: its script and its files."""

import json
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from persia_cli.export import plain
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import InputShape

FEATURE = {"name": "a", "column": "a", "group": 0, "dim": 2, "max_length": None, "rounds": 0, "size": 0}


class Line(torch.nn.Module):
    """A network of one weight for each dense input."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(3, 1)

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.line(batch.dense)
        return logits


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


def test_code_and_weights_have_the_same_permissions(tmp_path: Path) -> None:
    network: Any = SimpleNamespace(network=Line().eval(), shape=InputShape(3, (), 1), groups=())
    plain.write_network(tmp_path, network, "model.kind=custom")
    modes = {path.name: path.stat().st_mode for path in tmp_path.iterdir()}
    assert modes["network.safetensors"] == modes["network.py"]
