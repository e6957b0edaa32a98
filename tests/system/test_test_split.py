"""Test samples are scored once, at the end of a training, with its best model."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from persia_cli.main import app
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, finished_steps
from tests.support.planted import write_planted
from tests.support.printed import key_values

SMALL = ["model.dim=4", "model.hidden=[64]", "cluster=embedded", "optimizer.dense.lr=0.01", "train.batch_size=128"]


def persia(*words: object) -> Result:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done


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
    shown = [key_values(line) for line in trained.stdout.splitlines() if "split=" in line]
    assert [line["split"] for line in shown] == ["eval", "test"]

    again = key_values(persia("eval", run, "--test").stdout)
    assert again["split"] == "test"
    for key in ("auc", "log_loss", "loss", "eval_samples"):
        assert json.loads(again[key]) == tested[key] == json.loads(shown[1][key])
    assert lines_of(run, "test") == [tested], "later evaluations have separate records"

    persia("report", run)
    page = (run / "report.html").read_text()
    assert f'<span class="soft">AUC of the test</span><b>{tested["auc"]:.4f}</b>' in page
    assert f"{tested['auc']:.6f}" in page
