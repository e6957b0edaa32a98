"""Asynchronous training: with one step in flight it is synchronous training; it is saved and evaluated; ranks learn."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file
from typer.testing import CliRunner

from persia_cli.engines.job import JobResult
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder, newest_checkpoint
from tests.support.checkpoints import read_rows
from tests.support.jobs import CRITEO_FFNN, evaluation, launch, losses, plan, train
from tests.support.oracle import Oracle
from tests.support.printed import key_values
from tests.support.small import WORDS

ONE_IN_FLIGHT = ["cluster=embedded", "mode=async", "mode.staleness=1", "train.log_every_steps=1", "seed=1"]
START = "initial_accumulator_value=0.1"
PAIRS = [
    ["optimizer=sgd", "optimizer.dense.l2=0.01"],
    ["optimizer=adagrad", f"optimizer.embedding.{START}", "optimizer.dense.eps=1e-2"],
    ["optimizer=adam", "optimizer.embedding.eps=1e-3", "optimizer.dense.eps=1e-3"],
]
IDS = ["sgd", "adagrad", "adam"]
SMALL = [*(word for word in WORDS if not word.startswith("mode=")), "cluster=embedded", "train.steps=20"]


@pytest.mark.parametrize("optimizer", PAIRS[1:], ids=IDS[1:])
def test_with_one_step_in_flight_losses_are_those_of_plain_torch(
    optimizer: list[str], criteo_rows: Path, tmp_path: Path
) -> None:
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", *ONE_IN_FLIGHT, *optimizer]
    job = plan([*words, "train.steps=50", "train.batch_size=128", "checkpoint.at_end=false"], tmp_path / "run")
    ours = losses(launch(job))
    oracle = Oracle(job.run, 50)
    np.testing.assert_allclose(ours, [oracle.step(step) for step in range(50)], rtol=0, atol=1e-5)
    assert ours[-1] < ours[0] - 0.02


@pytest.mark.parametrize("optimizer", PAIRS, ids=IDS)
def test_with_one_step_in_flight_every_weight_is_that_of_synchronous_training(
    optimizer: list[str], tmp_path: Path
) -> None:
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


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """An asynchronous run of two servers, evaluated and saved halfway and at its end."""
    words = [*SMALL, "mode=async", "cluster.embedding_servers=2", "checkpoint.every_steps=10", "eval.every_steps=10"]
    return train(words, tmp_path_factory.mktemp("async") / "run")


def printed(run_dir: Path, *words: str) -> dict[str, str]:
    """Run `persia eval` and return what it prints."""
    result = CliRunner().invoke(app, ["eval", str(run_dir), *words])
    assert result.exit_code == 0, result.stderr
    return key_values(result.stdout)


@pytest.mark.parametrize(
    "words",
    [[], ["cluster.embedding_servers=3"], ["mode=hybrid"], ["mode=sync"]],
    ids=lambda words: " ".join(words) or "unchanged",
)
def test_evaluation_of_the_saved_model_prints_the_same_digits(saved: JobResult, words: list[str]) -> None:
    expected = evaluation(saved)
    figures = printed(saved.run_dir, *words)
    assert {name: figures[name] for name in ("auc", "log_loss")} == {
        name: repr(expected[name]) for name in ("auc", "log_loss")
    }
    assert int(figures["rows"]) == expected["rows"]


def test_a_model_of_another_mode_evaluates_to_the_same_digits(tmp_path: Path) -> None:
    expected = evaluation(train([*SMALL, "mode=hybrid"], tmp_path / "run"))
    assert printed(tmp_path / "run", "mode=async")["log_loss"] == repr(expected["log_loss"])


def test_saved_weights_are_the_initial_ones_and_what_rows_add(saved: JobResult) -> None:
    last = newest_checkpoint(saved.run_dir / CHECKPOINTS)
    weights, initial = (load_file(last / "dense" / f"{name}.safetensors") for name in ("dense", "dense_initial"))
    with safe_open(last / "dense" / "dense_optimizer.safetensors", framework="pt") as file:
        names = json.loads(file.metadata()["persia"])["parameters"]
    rows = read_rows(last)["(dense)"]
    assert rows.ids.tolist() == list(range(len(rows.ids)))
    assert (rows.last_used == saved_step(last) - 1).all()
    flat, start = rows.embedding.reshape(-1), 0
    assert sorted(names) == sorted(initial)
    for name in names:
        first = initial[name]
        moved = first.numpy() + flat[start : start + first.numel()].reshape(first.shape)
        np.testing.assert_array_equal(weights[name].numpy(), moved)
        start += -(-first.numel() // 16) * 16
    half = load_file(checkpoint_folder(saved.run_dir / CHECKPOINTS, 10) / "dense" / "dense.safetensors")
    assert any((half[name] != weights[name]).any() for name in weights)


def saved_step(checkpoint: Path) -> int:
    """Return the step of a checkpoint."""
    return int(checkpoint.name.removeprefix("step-"))


def test_the_table_of_dense_weights_is_reported(saved: JobResult) -> None:
    result = CliRunner().invoke(app, ["table", "stats", str(saved.run_dir), "--json"])
    assert result.exit_code == 0, result.stderr
    table = json.loads(result.stdout)["tables"]["(dense)"]
    rows = len(read_rows(newest_checkpoint(saved.run_dir / CHECKPOINTS))["(dense)"].ids)
    assert (table["rows"], table["counters"]["rows"], table["room_capacity"]) == (rows, rows, None)
    assert table["counters"]["evicted"] == table["counters"]["gradients_missing"] == 0


@pytest.mark.slow
@pytest.mark.processes
def test_two_ranks_learn(tmp_path: Path) -> None:
    """Each trains half of every batch, none waits for the other's gradients, and both models are one."""
    words = ["conf=adult_income", "train.epochs=1", "mode=async", "cluster.nn_workers=2", "cluster.embedding_servers=2"]
    result = train([*words, "eval.every_steps=100"], tmp_path / "run")
    aucs = [line["auc"] for line in result.metrics if line["split"] == "eval"]
    assert len(aucs) == 3
    assert aucs[-1] >= 0.915
    lines = [line for line in result.metrics if line["split"] == "train"]
    assert max(line["staleness_max"] for line in lines) <= 3
    weights = load_file(newest_checkpoint(result.run_dir / CHECKPOINTS) / "dense" / "dense.safetensors")
    assert sum(weight.numel() for weight in weights.values()) == 362_001
    # Evaluated by one rank, the model that two ranks evaluated halves of: sums are rounded otherwise.
    assert float(printed(result.run_dir, "cluster=embedded", "cluster.nn_workers=1")["auc"]) == pytest.approx(aucs[-1])
