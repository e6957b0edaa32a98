"""Asynchronous training: with one step in flight it is synchronous training; it is saved and evaluated; ranks learn."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder
from tests.support.checkpoints import read_rows
from tests.support.jobs import evaluation, losses, train
from tests.support.small import WORDS

START = "initial_accumulator_value=0.1"
PAIRS = [
    ["optimizer=adagrad", f"optimizer.embedding.{START}", "optimizer.dense.eps=1e-2"],
    ["optimizer=adam", "optimizer.embedding.eps=1e-3", "optimizer.dense.eps=1e-3"],
]
IDS = ["adagrad", "adam"]
SMALL = [*(word for word in WORDS if not word.startswith("mode=")), "cluster=embedded", "train.steps=20"]


@pytest.mark.parametrize("optimizer", PAIRS, ids=IDS)
def test_one_step_in_flight_has_the_weights_of_synchronous_training(optimizer: list[str], tmp_path: Path) -> None:
    words = [
        *SMALL,
        *optimizer,
        "train.steps=8",
        "cluster.embedding_servers=2",
        "checkpoint.every_steps=1",
        "checkpoint.keep=null",
    ]
    ours = train([*words, "mode=async", "mode.staleness=1"], tmp_path / "async")
    theirs = train([*words, "mode=sync"], tmp_path / "sync")
    np.testing.assert_allclose(losses(ours), losses(theirs), rtol=0, atol=1e-6)
    for step in range(1, 9):
        assert_close(
            checkpoint_folder(ours.run_dir / CHECKPOINTS, step), checkpoint_folder(theirs.run_dir / CHECKPOINTS, step)
        )


def assert_close(one: Path, other: Path) -> None:
    """Require that two checkpoints hold the same dense weights and rows of features, but for rounding."""
    mine, yours = (load_file(folder / "dense" / "dense.safetensors") for folder in (one, other))
    assert mine.keys() == yours.keys()
    for name, weights in mine.items():
        np.testing.assert_allclose(weights, yours[name], rtol=1e-5, atol=1e-6, err_msg=f"{one.name} {name}")
    ours, theirs = read_rows(one), read_rows(other)
    assert ours.keys() - theirs.keys() == {"(dense)"}
    for name, rows in theirs.items():
        np.testing.assert_array_equal(ours[name].ids, rows.ids)
        np.testing.assert_allclose(ours[name].embedding, rows.embedding, rtol=1e-5, atol=1e-6, err_msg=name)


def printed(run_dir: Path, *words: str) -> dict[str, Any]:
    """Run `persia eval` and return what it prints."""
    result = CliRunner().invoke(app, ["eval", str(run_dir), "--json", *words])
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


def test_evaluations_of_the_saved_model_print_the_same_digits(tmp_path: Path) -> None:
    expected = evaluation(train([*SMALL, "mode=async", "cluster.embedding_servers=2"], tmp_path / "run"))
    for word in ("cluster.embedding_servers=3", "mode=hybrid"):
        figures = printed(tmp_path / "run", word, "train.calibrate=off")
        for name in ("auc", "log_loss", "rows"):
            assert figures[name] == expected[name]


@pytest.mark.slow
def test_two_ranks_learn(tmp_path: Path) -> None:
    """Each trains half of every batch, none waits for the other's gradients, and both models are one."""
    words = ["conf=adult_income", "train.epochs=1", "mode=async", "cluster.nn_workers=2", "cluster.embedding_servers=2"]
    result = train([*words, "eval.every_steps=100"], tmp_path / "run")
    aucs = [line["auc"] for line in result.metrics if line["split"] == "eval"]
    assert aucs[-1] >= 0.915
    assert max(line["staleness_max"] for line in result.metrics if line["split"] == "train") <= 3
    # Evaluated by one rank, the model that two ranks evaluated halves of: sums are rounded otherwise.
    assert printed(result.run_dir, "cluster=embedded", "cluster.nn_workers=1")["auc"] == pytest.approx(aucs[-1])
