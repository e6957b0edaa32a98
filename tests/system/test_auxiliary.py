"""Auxiliary losses of networks in whole jobs: every weight and row is plain torch's, on one rank, in parts, on two."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import evaluation, launch, losses, plan, train
from tests.support.lists import STEPS, lists_job
from tests.support.step_lock import assert_every_step_agrees

ADAM = "optimizer.dense={kind: adam, lr: 0.001, eps: 1e-3}"
UNEQUAL = "train.losses={click: {kind: bce, weight: 3}, buy: {kind: mse}}"
TWO_RANKS = ["cluster=local", "cluster.nn_workers=2", "cluster.embedding_servers=2", "cluster.embedding_workers=2"]


def dien_job(folder: Path) -> list[str]:
    """The arguments of a job of DIEN with its auxiliary loss, of two labels, weights and short last batches."""
    data = [word for word in lists_job(folder) if not word.startswith("model.")]
    model = "kind: dien, dim: 8, attend: {liked: [history]}, hidden: [12], norm: none, dropout: 0"
    return [*data, f"model={{{model}, auxiliary_weight: 0.5}}"]


def test_dien_learns_the_next_element_as_plain_torch_does(tmp_path: Path) -> None:
    job = plan([*dien_job(tmp_path), ADAM, "checkpoint={every_steps: 1, keep: null}"], tmp_path / "run")
    result = launch(job)
    assert len(losses(result)) == STEPS
    assert_every_step_agrees(job, result, STEPS)
    scored, last = evaluation(result), [line for line in result.metrics if line["split"] == "train"][-1]
    of_labels = [(line["log_loss_click"] + line["log_loss_buy"]) / 2 for line in (scored, last)]
    assert scored["loss"] == pytest.approx(of_labels[0], rel=1e-5), "evaluations do not compute it"
    assert last["loss"] > of_labels[1] + 0.2, "training lines have it in their loss"


@pytest.mark.parametrize(
    "words",
    [
        ["train.accumulate=4"],
        pytest.param([*TWO_RANKS, "train.accumulate=4"], marks=pytest.mark.slow),
    ],
    ids=["parts", "two ranks in parts"],
)
def test_a_network_of_a_user_learns_its_own_loss(words: list[str], tmp_path: Path) -> None:
    """It has a weight that no logit depends on."""
    given = [UNEQUAL, "model.name=GuessingNetwork", ADAM, "checkpoint={every_steps: 1, keep: null}"]
    job = plan([*lists_job(tmp_path), *given, *words], tmp_path / "run")
    result = launch(job)
    assert len(losses(result)) == STEPS
    assert_every_step_agrees(job, result, STEPS)


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    words = [*dien_job(tmp_path), "train.accumulate=2"]
    straight = train(words, tmp_path / "straight")
    train([*words, "train.steps=4"], tmp_path / "run")
    ended = CliRunner().invoke(app, ["resume", str(tmp_path / "run"), f"train.steps={STEPS}"])
    assert ended.exit_code == 0, ended.output
    ours, theirs = (newest_checkpoint(each / CHECKPOINTS) for each in (tmp_path / "run", straight.run_dir))
    assert_same_model(ours, theirs)
