"""Training on the items of a batch: several ranks, resuming, and what is refused."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from persia_cli.engines.job import result_of
from persia_cli.errors import ConfigError
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import evaluation, losses, plan, train

STEPS = 24
SOFTMAX = "train.losses={label: {kind: in_batch_softmax, correction_buckets: 97, correction_rate: 0.1}}"
WORDS = [
    *("conf=synthetic", "cluster=embedded", "mode=sync", "train.batch_size=32", "train.log_every_steps=1"),
    *("dataset.generator.train_rows=336", "dataset.generator.eval_rows=90", f"train.steps={STEPS}", "train.epochs=5"),
    *("dataset.generator.cardinalities=[40, 9, 30]", "dataset.generator.dense=2"),
    *("model=two_tower", "model.user=[feature_0, feature_1]", "model.item=[feature_2]", "model.hidden=[8]"),
    *("model.width=6", "checkpoint.every_steps=8", SOFTMAX),
]
"""Steps 11 and 22 are the last of an epoch, with 16 samples, which are the first rank's."""


def frequency(run_dir: Path, step: int = STEPS) -> dict[str, np.ndarray]:
    saved = load_file(checkpoint_folder(run_dir / CHECKPOINTS, step) / "dense" / "dense.safetensors")
    return {name: value.numpy() for name, value in saved.items() if name.startswith("item_frequency.")}


def test_it_learns_and_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    straight = train(WORDS, tmp_path / "straight")
    curve = losses(straight)
    assert np.mean(curve[-6:]) < np.mean(curve[:6]) - 0.05
    assert np.isfinite(evaluation(straight)["auc"])
    assert frequency(straight.run_dir)["item_frequency.steps"] == STEPS
    train([*WORDS, "train.steps=16"], tmp_path / "stopped")
    ended = CliRunner().invoke(app, ["resume", str(tmp_path / "stopped"), f"train.steps={STEPS}"])
    assert ended.exit_code == 0, ended.output
    assert losses(result_of(tmp_path / "stopped")) == curve
    assert_same_model(*(checkpoint_folder(tmp_path / name / CHECKPOINTS, STEPS) for name in ("straight", "stopped")))


@pytest.mark.slow
def test_two_ranks_have_the_negatives_of_all(tmp_path: Path) -> None:
    """The first ten steps have the losses of one rank: later ones are far from equal rounding."""
    words = [*WORDS, "optimizer=sgd"]
    one = train(words, tmp_path / "one")
    two = train([*words, "cluster=local", "cluster.nn_workers=2"], tmp_path / "two")
    assert len(losses(two)) == STEPS
    np.testing.assert_allclose(losses(two), losses(one), rtol=1e-4, atol=1e-5)
    for name, value in frequency(one.run_dir).items():
        assert np.array_equal(value, frequency(two.run_dir)[name])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["model=ffnn", "model.hidden=[8]"], "model.kind=ffnn has none; use model.kind=two_tower or model.kind=sasrec"),
        (["mode=async", "cluster=local", "cluster.nn_workers=2"], "train.losses: with mode.kind=async"),
        (["train.losses={label: {kind: bpr}}"], "kind=bpr pairs the samples of one query, a user say; set dataset"),
    ],
    ids=["network", "async", "bpr"],
)
def test_what_cannot_be_is_refused_in_a_sentence(words: list[str], sentence: str, tmp_path: Path) -> None:
    kept = [word for word in WORDS if words[0] != "model=ffnn" or not word.startswith("model")]
    kept = [word for word in kept if word != SOFTMAX or "train.losses" not in words[0]]
    with pytest.raises(ConfigError, match=sentence):
        plan([*kept, *words], tmp_path / "run")


def test_a_null_is_no_item(tmp_path: Path) -> None:
    """Samples without an item count as those of weight 0, as positive ones and as negatives."""
    draw = np.random.default_rng(3)
    user, item, there = draw.integers(0, 20, 300), draw.integers(0, 12, 300), draw.random(300) < 0.7
    curves = []
    for name, items, weights in (
        ("null", [int(each) if known else None for each, known in zip(item, there, strict=True)], np.ones(300)),
        ("none", np.where(there, item, 99), there.astype(float)),
    ):
        folder = tmp_path / name
        folder.mkdir()
        table = {"user": user, "item": items, "label": np.ones(300), "weight": weights}
        pq.write_table(pa.table(table), folder / "rows.parquet")
        found = train(
            [
                *("conf=base", "dataset=parquet", f"dataset.path={folder}", "dataset.labels=[label]"),
                *("dataset.sparse=[user, item]", "dataset.dense=[]", "dataset.weight=weight", "cluster=embedded"),
                *("dataset.split={kind: every, n: 5}", "mode=sync", "train.batch_size=30", "train.steps=16"),
                *("model=two_tower", "model.user=[user]", "model.item=[item]", "model.hidden=[8]", "model.width=6"),
                *("train.losses={label: {kind: in_batch_softmax}}", "train.log_every_steps=1"),
            ],
            tmp_path / f"{name}-run",
        )
        curves.append([*losses(found), evaluation(found)["loss"]])
    assert curves[0] == curves[1]
