"""A training without settings ends when it no longer improves, and its result is the best model."""

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
    assert "up to 200 steps (20 epochs) of 128 samples" in trained.stderr
    found = evaluations(run)
    best = max(found, key=lambda step: found[step]["auc"] - found[step]["log_loss"])
    assert list(found) == [*range(10, best + 30, 10)], "an evaluation after each epoch, and two after the best"
    assert best + 20 < 200
    assert "got worse while the training loss fell: more dropout may help, such as model.dropout=0.2" in trained.stderr
    shown = key_values(trained.stdout)
    assert (shown["best_by"], shown["step"]) == ("auc_minus_log_loss", str(best))
    assert float(shown["auc"]) == found[best]["auc"]
    assert finished_steps(run / CHECKPOINTS) == [best, best + 20]
    again = key_values(persia("eval", run).stdout)
    assert float(again["auc"]) == found[best]["auc"]
    assert "the training ended early" in persia("train", *words, "resume=auto", "--run-dir", run).stderr
    persia("resume", run, "train.epochs=21", "train.stop_early=null")
    assert max(evaluations(run)) == 210
