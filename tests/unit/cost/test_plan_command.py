"""`persia plan` from a file of measurements and without one, and the check of its predictions by real jobs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.cost.frequency import sample_frequency
from persia_cli.cost.measure import cases_of, changed, measure_case
from persia_cli.cost.measurements import read_measurements
from persia_cli.cost.model import TERMS
from persia_cli.plan.settled import settled
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
def test_a_plan_without_measurements_is_an_estimate_that_states_its_error(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 500, 2000)
    pd.DataFrame({"user": ids, "y": ids % 2}).to_parquet(tmp_path / "data.parquet", index=False)
    files = [
        "dataset.path=data.parquet",
        "dataset.labels=[y]",
        "dataset.sparse=[user]",
        "dataset.split={kind: every, n: 4}",
    ]
    shape = ["dataset=parquet", *files, "model=ffnn", "train.batch_size=256"]
    done = persia("plan", *shape, folder=tmp_path, limit_s=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("predicted ")
    assert lines[1].startswith("error ")
    assert "factor of 2" in lines[1]
    assert "persia bench costs dataset=parquet" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data.parquet"]


@pytest.mark.processes
def test_a_plan_from_a_missing_file_ends_with_one_sentence(tmp_path: Path) -> None:
    done = persia("plan", *MEASURED, "--costs", "none.json", folder=tmp_path, limit_s=100)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "persia bench costs" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_predictions_are_within_a_quarter_of_measurements(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("t")  # a short path, for Unix sockets lie in it
    done = persia("bench", "costs", "conf=criteo", "--json", folder=folder, limit_s=400)
    assert done.returncode == 0, done.stderr
    measured = read_measurements(folder / "costs.json")
    run = changed(settled(compose_run(["conf=criteo", "embedding.memory=512MiB"]), None), batch=2048)
    others = {
        "batch 1024": changed(run, batch=1024),
        "dim 32": changed(run, dim=32),
        "2 servers": changed(run, servers=2),
        "bfloat16": changed(run, wire="bfloat16"),
        "other network": changed(run, hidden=(256, 128)),
        "batch 8192, float16": changed(run, batch=8192, dim=32, wire="float16"),
    }
    frequency = sample_frequency(run)
    for case in cases_of(others):
        step = measure_case(case, frequency)
        predicted = sum(step.step.cpu(measured.costs(), role) for role in TERMS)
        assert predicted == pytest.approx(sum(step.cpu_s.values()), rel=0.25), case.name
    plan = persia("plan", "conf=criteo", folder=folder, limit_s=100)
    assert plan.returncode == 0, plan.stderr
    assert "from the measurements in costs.json" in plan.stdout
