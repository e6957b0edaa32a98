"""`persia sweep` with real jobs: points in separate processes, failures, resuming, interrupts."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from persia_cli.observe.journal import METRICS, read_journal
from tests.conftest import poll_for
from tests.support.small import WORDS

pytestmark = pytest.mark.slow

LIMIT_S = 150.0
TINY = [
    *(word for word in WORDS if not word.startswith(("mode=", "dataset.generator.train_rows", "train.log"))),
    "dataset.generator.train_rows=960",
    "cluster=embedded",
]

NETWORK = """
import os
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, width):
        super().__init__()
        self.refused = width == 3
        self.layer = nn.Sequential(nn.Linear(shape.dense, width), nn.Linear(width, shape.tasks))

    def forward(self, batch):
        if self.refused and len(batch.dense) > 8 and os.path.exists("refuse"):
            raise ValueError("three is refused")
        return self.layer(batch.dense)
"""


def sweep(folder: Path, *words: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "persia_cli", "sweep", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=limit_s)


def results(folder: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())
    return entries


@pytest.mark.timeout(400)
def test_a_grid_is_trained_compared_and_drawn(tmp_path: Path) -> None:
    words = [*TINY, "mode=sync,hybrid", "mode.staleness=2", "seed=1,2", "--jobs", "2", "--folder", "out", "--json"]
    ended = sweep(tmp_path, *words)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    sync, hybrid = told["settings"]
    assert (sync["setting"], hybrid["setting"]) == ({"mode": "sync"}, {"mode": "hybrid"})
    assert (sync["steps"], hybrid["steps"], hybrid["finished"]) == (30, 30, 2)
    assert (sync["staleness_max"], hybrid["staleness_max"]) == (1, 2)
    assert told["baseline"] == "mode=sync"

    folder = tmp_path / "out"
    # The metric by which a run chooses its evaluation compares the settings too.
    aucs = {(entry["swept"]["mode"], entry["seed"]): entry["metrics"]["quality"]["auc"] for entry in results(folder)}
    gaps = [aucs["hybrid", seed] - aucs["sync", seed] for seed in ("1", "2")]
    assert hybrid["auc_difference"]["mean"] == pytest.approx(sum(gaps) / 2)
    assert hybrid["auc_difference"]["count"] == 2
    for entry in results(folder):
        evaluated = [line for line in read_journal(folder / entry["run_dir"] / METRICS) if line["split"] == "eval"]
        best = max(evaluated, key=lambda line: line["auc"] - line["log_loss"])
        assert entry["metrics"]["quality"]["auc"] == best["auc"]
        assert entry["metrics"]["samples_per_s"] is None  # 30 steps tell no speed
        assert not (folder / entry["run_dir"] / "checkpoints").exists()
        assert (folder / entry["run_dir"] / "sweep.log").exists()
    with (folder / "results.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 4
    with (folder / "settings.csv").open(newline="") as file:
        assert [row["mode"] for row in csv.DictReader(file)] == ["sync", "hybrid"]
    assert sum(line.startswith("done ") for line in ended.stderr.splitlines()) == 4


@pytest.mark.timeout(400)
def test_a_failed_point_ends_no_sweep_and_resuming_trains_it_alone(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORK)
    (tmp_path / "refuse").touch()
    model = "model={kind: custom, dim: 4, file: net.py, name: Net, args: {width: %d}}"
    model = ",".join([model % 3, (model % 4).removeprefix("model=")])
    plain = [word for word in TINY if not word.startswith("model.")]
    ended = sweep(tmp_path, *plain, model, "mode=sync", "--folder", "out")
    assert ended.returncode == 1
    first, second = results(tmp_path / "out")
    assert "three is refused" in first["error"]
    assert (first["metrics"], second["error"]) == (None, None)
    assert ended.stdout.count("1 failed") == 1
    assert any(line.startswith("failed ") for line in ended.stderr.splitlines())
    assert ended.stderr.splitlines()[-1] == "next      persia sweep --resume out"

    (tmp_path / "refuse").unlink()
    again = sweep(tmp_path, "--resume", "out")
    assert again.returncode == 0, again.stderr
    assert [line.partition(" ")[0] for line in again.stderr.splitlines()].count("done") == 1
    by_dir = {entry["run_dir"]: entry for entry in results(tmp_path / "out")}
    assert by_dir[second["run_dir"]] == second
    assert all(entry["error"] is None for entry in by_dir.values())
    assert {entry["run_dir"] for entry in by_dir.values()} != {first["run_dir"], second["run_dir"]}

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    refused = sweep(elsewhere, "--resume", "../out")
    assert refused.returncode == 2
    assert f"this sweep began in {tmp_path}" in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_a_sweep_that_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    endless = [word for word in TINY if "train_rows" not in word]
    endless += ["dataset.generator.train_rows=1_000_000_000", "train.log_every_steps=5", "cluster.stop_timeout_s=5"]
    command = [sys.executable, "-m", "persia_cli", "sweep", *endless, "seed=1,2,3", "--jobs", "2", "--folder", "out"]
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output)
    try:
        points = tmp_path / "out" / "points"
        poll_for(lambda: len(list(points.glob(f"*/{METRICS}"))) == 2, LIMIT_S, "two points at work")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        os.kill(process.pid, number)
        poll_for(lambda: process.poll() is not None, 30.0, "the end of the sweep")
        poll_for(lambda: not any(_runs(child) for child in children), 10.0, "the end of its points")
    finally:
        process.kill()
        process.wait()
    if number == signal.SIGINT:
        assert process.returncode == 130
        said = (tmp_path / "output").read_text()
        assert "interrupted; everything is stopped" in said
        assert said.splitlines()[-1] == "next      persia sweep --resume out"
        assert "Traceback" not in said
        assert len(list(points.glob("*/sweep.log"))) == 2
        assert list(points.glob("*.log")) == []


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
