"""`persia sweep --search` and `--folds` with real jobs: pruned steps, a killed search that goes on, folds."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.sweeps.folder import UNFINISHED
from tests.conftest import poll_for
from tests.system.test_sweep import LIMIT_S, TINY, results, sweep

pytestmark = pytest.mark.slow

SEARCH = [
    *(word for word in TINY if not word.startswith(("dataset.generator.train_rows", "optimizer"))),
    "dataset.generator.train_rows=9600",
    "eval.every_steps=60",
    "optimizer.dense.lr=tag(log,interval(1e-4,1e-1))",
    "mode=sync",
    "optimizer.embedding.lr=0.01,0.1",
    "--search", "tpe", "--folder", "out",
]  # fmt: skip
STEPS = 300


@pytest.mark.timeout(400)
def test_pruned_trials_train_fewer_steps_and_the_best_are_repeated(tmp_path: Path) -> None:
    ended = sweep(tmp_path, *SEARCH, "--trials", "4", "--prune", "--repeat", "3x2", "--json", limit_s=350.0)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    points = told["points"]
    pruned, whole = ([each for each in points if each["pruned"] is is_pruned] for is_pruned in (True, False))
    assert pruned
    for each in pruned:
        lines = read_journal(tmp_path / "out" / each["run_dir"] / METRICS)
        assert max(line["step"] for line in lines) < STEPS
        assert not (tmp_path / "out" / each["run_dir"] / "checkpoints").exists()
    assert {each["metrics"]["steps"] for each in whole} == {STEPS}
    assert [each["seed"] for each in whole][-2:] == ["1", "2"]
    best = told["settings"][0]
    assert (best["finished"], best["auc"]["count"]) == (2, 2)
    assert best["auc"]["standard_error"] > 0
    assert sum(each["seed"] == "0" for each in points) == 1 + 4
    assert "over the defaults" in ended.stderr or "no better than the defaults" in ended.stderr
    assert told["chosen"] in [setting["setting"] for setting in told["settings"]]


@pytest.mark.timeout(700)
def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "persia_cli",
        "sweep",
        *SEARCH,
        "train.log_every_steps=5",
        "--trials",
        "3",
        "--repeat",
        "3x2",
    ]
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output)
    try:
        points = tmp_path / "out" / "points"
        poll_for(lambda: process.poll() or len(list(points.glob(f"*/{METRICS}"))) == 3, LIMIT_S, "a second trial")
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    before = results(tmp_path / "out")
    assert [each["error"] for each in before] == [None, None, UNFINISHED], "the defaults and two trials"
    again = sweep(tmp_path, "--resume", "out", limit_s=500.0)
    assert again.returncode == 0, again.stderr
    after = results(tmp_path / "out")
    assert after[:2] == before[:2]
    assert len(after) == 1 + 3 + (3 + 1) * 2
    assert after[2]["swept"] == before[2]["swept"]
    assert after[2]["run_dir"] == f"{before[2]['run_dir']}-again-2"


@pytest.mark.timeout(400)
def test_folds_are_averaged(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    number = rng.normal(size=900).astype(np.float32)
    label = (rng.random(900) < 1 / (1 + np.exp(-2 * number))).astype(np.float32)
    pq.write_table(pa.table({"number": number, "label": label}), tmp_path / "data.parquet")
    words = ["dataset=parquet", "dataset.path=data.parquet", "dataset.labels=[label]", "dataset.dense=[number]"]
    words += ["dataset.split={kind: every, n: 3}", "dataset.split.offset=range(0,3)", "--folds", "--json"]
    small = ["model.hidden=[4]", "train.epochs=1", "train.batch_size=60", "cluster=embedded", "mode=sync"]
    ended = sweep(tmp_path, *words, *small, "--folder", "out")
    assert ended.returncode == 0, ended.stderr
    [setting] = json.loads(ended.stdout)["settings"]
    aucs = [each["metrics"]["quality"]["auc"] for each in results(tmp_path / "out")]
    assert len(set(aucs)) == 3
    assert (setting["setting"], setting["auc"]["count"]) == ({}, 3)
    assert setting["auc"]["mean"] == pytest.approx(np.mean(aucs))
    assert setting["auc"]["standard_error"] == pytest.approx(np.std(aucs, ddof=1) / 3**0.5)
    assert "best" not in ended.stderr
