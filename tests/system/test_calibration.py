"""A model that has learnt its rows by heart gives probabilities that are right, wherever they are read."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

from persia_cli.engines.job import JobResult, result_of
from persia_cli.main import app
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.serving.fields import read_fields
from persia_cli.serving.predictor import Predictor
from persia_cli.store.checkpoints.manifest import read_manifest
from tests.support.jobs import train

ROWS, IDS = {"train": 1500, "eval": 1000, "test": 1000}, 300
LABELS = ("click", "buy")
STEPS = 240


def persia(*words: Any) -> Result:
    """Run a command that succeeds."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


def write_data(folder: Path) -> None:
    """Write rows with ids that a network learns by heart."""
    rng = np.random.default_rng(7)
    effects = rng.normal(-0.5, 1.5, (2, IDS))
    for part, rows in ROWS.items():
        ids = rng.integers(0, IDS, (2, rows))
        odds = np.take_along_axis(effects, ids, axis=1)
        click, buy = (rng.random((2, rows)) < 1.0 / (1.0 + np.exp(-odds))).astype(np.float64)
        table = pd.DataFrame({"a": ids[0], "b": ids[1], "click": click, "buy": buy})
        table.to_parquet(folder / f"{part}.parquet")


def words_of(folder: Path, *more: str) -> list[str]:
    """The words of a job on the data in `folder`."""
    return [
        *("conf=base", "dataset=parquet", f"dataset.path={folder}/data", "dataset.labels=[click, buy]"),
        *("dataset.dense=[]", "dataset.sparse=[a, b]", "model.hidden=[16]", "model.dim=8", "mode=sync"),
        "dataset.split={kind: files, train: [train.parquet], eval: [eval.parquet], test: [test.parquet]}",
        *("optimizer=adam", "optimizer.dense.lr=0.01", "optimizer.embedding.lr=0.05", "train.batch_size=100"),
        *(f"train.steps={STEPS}", "eval.every_steps=120", "checkpoint.best_by=log_loss_click", "cluster=embedded"),
        *("embedding.memory=8MiB", *more),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data, and in `run` a training whose output is in `output`."""
    folder = tmp_path_factory.mktemp("calibration")
    (folder / "data").mkdir()
    write_data(folder / "data")
    done = persia("train", *words_of(folder), "--run-dir", folder / "run")
    (folder / "output").write_text(done.output)
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> JobResult:
    """The same training without calibration."""
    return train(words_of(folder, "train.calibrate=off"), folder / "plain")


def event(run_dir: Path, step: int = STEPS) -> dict[str, Any]:
    return next(
        each for each in read_journal(run_dir / EVENTS) if each["event"] == "calibrated" and each["step"] == step
    )


def lines(run_dir: Path) -> list[dict[str, Any]]:
    """Lines of training and evaluations, without what depends on the moment."""
    found = [line for line in read_journal(run_dir / METRICS) if line["split"] != "test"]
    return [{key: value for key, value in line.items() if key not in ("time", "samples_per_s")} for line in found]


def dense(run_dir: Path, step: int = STEPS) -> dict[str, str]:
    """Checksums of the dense files and rows of a checkpoint."""
    files = read_manifest(run_dir / "checkpoints" / f"step-{step}").files
    return {each.name: each.xxh128 for each in files if each.name.endswith((".safetensors", ".arrow"))}


def log_loss(p: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    return float(-np.mean(y * np.log(p) + (1.0 - y) * np.log1p(-p)))


def predicted(folder: Path, part: str, *words: Any) -> pd.DataFrame:
    output = folder / f"{part}-scores.parquet"
    persia(
        "predict", folder / "run", folder / "data" / f"{part}.parquet", "-o", output, "--logits", "--overwrite", *words
    )
    return pd.read_parquet(output)


def test_training_has_the_same_bits_with_and_without(folder: Path, plain: JobResult) -> None:
    assert event(folder / "run")["labels"][0]["slope"] < 0.8
    assert lines(folder / "run") == lines(plain.run_dir)
    assert dense(folder / "run") == dense(plain.run_dir)
    assert not [each for each in read_journal(plain.run_dir / EVENTS) if each["event"] == "calibrated"]


def test_each_evaluated_checkpoint_has_its_own(folder: Path) -> None:
    """Of steps 120 and 240, both are saved before their evaluation."""
    found = [event(folder / "run", step)["labels"] for step in (120, STEPS)]
    for step, labels in zip((120, STEPS), found, strict=True):
        saved = read_manifest(folder / "run" / "checkpoints" / f"step-{step}").progress.calibration
        assert [(each.label, each.slope) for each in saved] == [(each["label"], each["slope"]) for each in labels]
    assert found[0] != found[1]


def test_an_evaluation_has_the_metrics_after(folder: Path) -> None:
    for step in (120, STEPS):
        done = persia("eval", folder / "run", "--step", step, "--json")
        shown, metrics = json.loads(done.stdout), event(folder / "run", step)["metrics"]
        assert {key: shown[key] for key in metrics} == pytest.approx(metrics, rel=1e-9)
        assert f"click by slope {event(folder / 'run', step)['labels'][0]['slope']:.4g}" in done.stderr
    raw = json.loads(persia("eval", folder / "run", "--step", STEPS, "--json", "train.calibrate=off").stdout)
    expected = lines(folder / "run")[-1]
    assert raw["log_loss_click"] == pytest.approx(expected["log_loss_click"], rel=1e-9)
    assert expected["log_loss_click"] > 1.2 * metrics["log_loss_click"]
    assert shown["auc_click"] == pytest.approx(expected["auc_click"], abs=1e-6)


def test_the_end_of_a_training_has_them_too(folder: Path) -> None:
    output, best = (folder / "output").read_text(), event(folder / "run", 120)
    shown = next(line for line in output.splitlines() if line.startswith("click  best by "))
    assert f" {best['metrics']['log_loss_click']:.6f} " in shown
    before, after = best["labels"][0]["log_loss"]
    assert f"log loss {before:.4f} -> {after:.4f} on the evaluation samples" in " ".join(output.split())


def test_rows_that_it_was_not_fitted_on_are_better(folder: Path) -> None:
    after, before = (
        json.loads(persia("eval", folder / "run", "--test", "--json", "--step", STEPS, *words).stdout)
        for words in ([], ["train.calibrate=off"])
    )
    for label in LABELS:
        assert after[f"log_loss_{label}"] < before[f"log_loss_{label}"] - 0.02
    scored = [line for line in read_journal(folder / "run" / METRICS) if line["split"] == "test"]
    [line] = scored  # by the best model, of step 120
    rows = pd.read_parquet(folder / "data" / "test.parquet")
    p = predicted(folder, "test", "--step", 120)["click_probability"].to_numpy(np.float64)
    assert line["log_loss_click"] == pytest.approx(log_loss(p, rows["click"].to_numpy()), rel=1e-5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_predictions_are_calibrated(folder: Path, ranks: int) -> None:
    found = predicted(
        folder, "eval", "--step", STEPS, f"cluster.nn_workers={ranks}", *(["cluster=local"] * (ranks > 1))
    )
    rows = pd.read_parquet(folder / "data" / "eval.parquet")
    for label, each in zip(LABELS, event(folder / "run")["labels"], strict=True):
        p = found[f"{label}_probability"].to_numpy(np.float64)
        assert log_loss(p, rows[label].to_numpy()) == pytest.approx(each["log_loss"][1], rel=1e-5)


def test_exports_have_the_predictions(folder: Path, tmp_path: Path) -> None:
    expected = predicted(folder, "eval", "--step", STEPS)
    persia(
        "export", folder / "run", "-o", tmp_path / "onnx", "--step", STEPS, "--verify", folder / "data" / "eval.parquet"
    )
    samples, fields = pq.read_table(folder / "data" / "eval.parquet"), read_fields(tmp_path / "onnx")
    batch = fields.batch({name: samples.column(name) for name, _, _ in fields.inputs()})
    served = Predictor.open(tmp_path / "onnx", check=True).predict(batch).values
    persia("export", folder / "run", "-o", tmp_path / "torch", "--format", "torch", "--step", STEPS)
    ids = {name: [[each] for each in samples.column(name).to_pylist()] for name in ("a", "b")}
    code = (
        "import json, sys, torch\nfrom predict import scores\n"
        "ids = json.load(sys.stdin)\n"
        "print(json.dumps(scores(torch.zeros(len(ids['a']), 0), ids).tolist()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(ids), capture_output=True, text=True, timeout=120,
        check=True, cwd=tmp_path / "torch",
    )  # fmt: skip
    logits = np.array(json.loads(done.stdout))
    for task, label in enumerate(LABELS):
        np.testing.assert_allclose(served[:, task], expected[f"{label}_probability"], atol=5e-6)
        np.testing.assert_allclose(logits[:, task], expected[f"{label}_logit"], atol=1e-4)


def test_a_resumed_training_does_not_depend_on_it(folder: Path, plain: JobResult, tmp_path: Path) -> None:
    half = train([*words_of(folder), f"train.steps={STEPS // 2}"], tmp_path / "run")
    assert read_manifest(half.run_dir / "checkpoints" / f"step-{STEPS // 2}").progress.calibration
    persia("resume", half.run_dir, f"train.steps={STEPS}", "train.epochs=16")
    assert dense(half.run_dir) == dense(plain.run_dir)
    assert event(half.run_dir) == event(folder / "run") | {"time": event(half.run_dir)["time"]}
    assert result_of(half.run_dir).metrics


@pytest.mark.slow
def test_dense_weights_of_servers_are_calibrated(folder: Path, tmp_path: Path) -> None:
    run = train([*words_of(folder), "mode=async", "optimizer=adagrad", "optimizer.dense.lr=0.1"], tmp_path / "run")
    shown = json.loads(persia("eval", run.run_dir, "--step", STEPS, "--json").stdout)
    metrics = event(run.run_dir)["metrics"]
    assert {key: shown[key] for key in metrics} == pytest.approx(metrics, rel=1e-6)
