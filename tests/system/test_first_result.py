"""The result of a training without settings: the best model, which its test samples score at the end."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from persia_cli.main import app
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, finished_steps
from tests.support.page_files import data_of
from tests.support.planted import write_planted

MODEL = ["model.dim=4", "model.hidden=[64]", "model.norm=batch", "model.dropout=0.2"]
SMALL = [*MODEL, "cluster=embedded", "optimizer.dense.lr=0.01", "train.batch_size=128"]


def persia(*words: object) -> Result:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def evaluations(run_dir: Path) -> dict[int, dict[str, Any]]:
    return {line["step"]: line for line in read_journal(run_dir / METRICS) if line["split"] == "eval"}


def test_training_ends_by_itself_and_its_result_is_the_best_checkpoint(tmp_path: Path) -> None:
    names = write_planted(tmp_path / "rows.parquet", rows=1600)
    data = [
        f"dataset.path={tmp_path / 'rows.parquet'}",
        "dataset.labels=[label]",
        f"dataset.sparse=[{','.join(names)}]",
    ]
    split = "dataset.split={kind: every, n: 5}"
    words = ["conf=base", "mode=sync", "dataset=parquet", *data, split, *SMALL]
    run = tmp_path / "run"
    trained = persia("train", *words, "--run-dir", run)
    assert "norm batch, dropout 0.2" in trained.stderr
    assert "up to 1,000 steps (100 epochs) of 128 samples" in trained.stderr
    found = evaluations(run)
    best = max(found, key=lambda step: found[step]["auc"])
    assert list(found) == [*range(50, best + 550, 50)], "an evaluation every 50 steps, and 500 steps after the best"
    assert best + 500 < 1000
    assert f"at step {best + 500}: auc has not improved over " in trained.stderr
    shown = trained.stdout.splitlines()[-1]
    assert shown.startswith(f"best by auc, step {best:,}")
    assert f" {found[best]['auc']:.6f} " in shown
    assert finished_steps(run / CHECKPOINTS) == [best, best + 500]
    assert json.loads(persia("eval", run, "--json").stdout)["auc"] == found[best]["auc"]
    assert "the training ended early" in persia("train", *words, "resume=auto", "--run-dir", run).stderr
    persia("resume", run, "train.epochs=101", "train.stop_early=null")
    assert max(evaluations(run)) == 1010


def lines_of(run: Path, split: str) -> list[dict[str, Any]]:
    return [line for line in read_journal(run / METRICS) if line["split"] == split]


def test_the_best_model_is_scored_on_the_test_samples_at_the_end(tmp_path: Path) -> None:
    names = write_planted(tmp_path / "rows.parquet", rows=1600)
    run = tmp_path / "run"
    trained = persia(
        "train",
        *("conf=base", "dataset=parquet", f"dataset.path={tmp_path / 'rows.parquet'}", "dataset.labels=[label]"),
        f"dataset.sparse=[{','.join(names)}]",
        "dataset.split={kind: hash, eval_fraction: 0.2, test_fraction: 0.1}",
        *SMALL,
        *("train.epochs=4", "eval.every_epochs=1", "checkpoint.every_steps=9", "checkpoint.best_by=log_loss"),
        *("--run-dir", run),
    )
    [tested] = lines_of(run, "test")
    evaluated = {line["step"]: line for line in lines_of(run, "eval")}
    best = min(evaluated, key=lambda step: evaluated[step]["log_loss"])
    assert finished_steps(run / CHECKPOINTS)[-1] > best == tested["step"], "the last model is not the best one"
    assert 100 < tested["eval_samples"] < 220
    [evaluated_samples] = {line["eval_samples"] for line in evaluated.values()}
    counts = (1600 - evaluated_samples - tested["eval_samples"], evaluated_samples, tested["eval_samples"])
    assert "{:,} training, {} evaluation and {} test samples;".format(*counts) in trained.stderr
    assert f"scoring {tested['eval_samples']} test samples with " in trained.stderr
    assert [line.split()[:3] for line in trained.stderr.splitlines() if line.startswith(("run ", "next "))] == [
        ["run", "base", "in"],
        ["next", "persia", "report"],
    ]
    heads = [line for line in trained.stdout.splitlines() if " samples " in line]
    assert [line.split("  ")[0] for line in heads] == [
        f"{evaluated_samples} samples",
        f"{tested['eval_samples']} test samples",
    ]
    assert f" {tested['auc']:.6f} " in trained.stdout.splitlines()[-1]
    again = json.loads(persia("eval", run, "--test", "--json").stdout)
    assert again["split"] == "test"
    for key in ("auc", "log_loss", "loss", "eval_samples"):
        assert again[key] == tested[key]
    assert lines_of(run, "test") == [tested], "later evaluations have separate records"

    persia("report", run)
    shown = data_of(run / "report.html")["run"]
    assert shown["facts"]["AUC of the test"] == f"{tested['auc']:.4f}"
    assert f"{tested['auc']:.6f}" in {cell for row in shown["tables"]["Evaluations"] for cell in row}


@pytest.mark.parametrize("given", ["{name: state}", "{name: copies, pooling: sum}", "clue"])
def test_a_feature_that_gives_the_label_away_is_named(tmp_path: Path, given: str) -> None:
    draw = np.random.default_rng(3)
    y = draw.random(1200) < 0.4
    columns = {
        "plan": draw.choice(["basic", "pro"], y.size),
        "state": np.where(y, draw.choice(["lost", "refunded"], y.size), "fine"),
        "copies": [[int(each)] * 2 for each in y],
        "clue": draw.random(y.size) + 2 * y,
        "returned": (draw.random(y.size) < 0.1).astype(np.int8),
        "cancelled": pa.array(y.astype(np.int8), mask=(draw.random(y.size) < 0.2) if given == "clue" else None),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    trained = persia(
        *("train", "conf=base", "mode=sync", "dataset=parquet", f"dataset.path={tmp_path / 'rows.parquet'}"),
        f"dataset.labels={'[returned, cancelled]' if given == 'clue' else '[cancelled]'}",
        *("dataset.split={kind: every, n: 3}", *SMALL, "train.epochs=20"),
        f"dataset.sparse=[plan{'' if given == 'clue' else f', {given}'}]",
        *(["dataset.dense=[clue]"] if given == "clue" else []),
        *("--run-dir", tmp_path / "run"),
    )
    name = given.removeprefix("{name: ").split(",")[0].rstrip("}")
    assert f"{name} alone gives AUC 1.0000, so it is probably known only after cancelled" in trained.stderr
