"""`persia plan` from a shipped file of measurements, and the check of its predictions by real jobs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.readme import ROOT

SHIPPED = ROOT / "docs" / "measured"
MEASURED = ["conf=criteo", "optimizer=rowwise_adagrad", "embedding.dtype=bfloat16"]
"""The arguments of the shipped measurements."""
PAPER = [
    *MEASURED,
    "model=ffnn_paper",
    "model.dim=128",
    "embedding.wire=float16",
    "embedding.capacity=781_250_000_000",
    "train.batch_size=262144",
    "cluster.nn_workers=64",
    "cluster.data_loaders=64",
    "cluster.embedding_workers=1000",
    "cluster.embedding_servers=960",
]
"""100 trillion parameters on the machines of the paper, with 4,096 samples for each GPU in a step."""


def persia(*words: str, folder: Path, limit_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "persia_cli", *words]
    environment = os.environ | {"TMPDIR": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, cwd=folder, env=environment)


@pytest.mark.processes
def test_a_plan_for_the_papers_cluster(tmp_path: Path) -> None:
    files = ["--costs", str(SHIPPED / "costs.json"), "--machines", str(SHIPPED / "paper_cluster.yaml")]
    done = persia("plan", *PAPER, *files, "--samples-per-s", "1_920_000", "--json", folder=tmp_path, limit_s=100)
    assert done.returncode == 0, done.stderr
    plan: dict[str, Any] = json.loads(done.stdout)
    assert plan["predicted"] is True
    assert plan["parameters"] == pytest.approx(100e12, rel=1e-6)
    assert plan["samples_per_s"] == min(plan["limits"].values()) == plan["limits"][plan["bottleneck"]]
    assert {machines["name"]: machines["fits"] for machines in plan["machines"]} == {
        "a2-highgpu-8g": True, "c2-standard-30": True, "m2-ultramem-416": True
    }  # fmt: skip
    assert any("published" in assumption for assumption in plan["assumptions"])


@pytest.mark.processes
def test_a_plan_without_measurements_ends_with_one_sentence(tmp_path: Path) -> None:
    done = persia("plan", *MEASURED, folder=tmp_path, limit_s=100)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "persia bench costs" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_predictions_are_within_a_quarter_of_measurements(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("t")  # a short path, for Unix sockets lie in it
    done = persia("bench", "costs", "conf=criteo", "--check", "--json", folder=folder, limit_s=800)
    assert done.returncode == 0, done.stderr
    checked = json.loads(done.stdout)["check"]
    assert len(checked) == 6
    for each in checked:
        assert each["predicted_cpu"] == pytest.approx(each["measured_cpu"], rel=0.25), each["name"]
    plan = persia("plan", "conf=criteo", folder=folder, limit_s=100)
    assert plan.returncode == 0, plan.stderr
    assert plan.stdout.startswith("predicted ")
