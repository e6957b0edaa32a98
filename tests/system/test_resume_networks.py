"""Whole jobs of every network that are resumed in sync mode: losses, rows and dense weights to the bit."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import train
from tests.system.test_resume import persia, training
from tests.unit.model.kinds import KINDS, SEQUENTIAL, name, regularised

pytestmark = pytest.mark.slow
STEPS, HALF, SIZE = 12, 5, 16


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples with what every network reads; steps 6 and 12 end an epoch."""
    folder, draw, rows = tmp_path_factory.mktemp("data"), np.random.default_rng(4), SIZE * 8
    table = {feature: draw.integers(0, 30, rows) for feature in ("f0", "f1")} | {"d0": draw.random(rows)}
    table["clicked"] = [draw.integers(0, 30, draw.integers(0, 4)) for _ in range(rows)]
    table["label"] = (draw.random(rows) < 0.4).astype(float)
    pd.DataFrame(table).to_parquet(folder / "part.parquet")
    return folder


def words(model, data: Path) -> list[str]:
    """The arguments of a job that trains the network on the features that it names."""
    features = ["f0"] if model.kind == "sasrec" else ["f0", "f1"]
    if model.kind in SEQUENTIAL:
        features.append("{name: clicked, table: f0, pooling: none, max_length: 3}")
    given = {key: value for key, value in model.model_dump(exclude_defaults=True, mode="json").items() if key != "kind"}
    return [
        *("conf=base", "dataset=parquet", f"dataset.path='{data}'", "dataset.labels=[label]"),
        f"dataset.dense={'[]' if model.kind == 'sasrec' else '[d0]'}",
        f"dataset.sparse=[{', '.join(features)}]",
        "dataset.split={kind: every, n: 4}",
        *("cluster=embedded", "mode=sync", f"train.batch_size={SIZE}", "train.epochs=2", "train.log_every_steps=1"),
        *("embedding.memory=16MiB", "optimizer=adam", f"model={model.kind}"),
        *(f"model.{key}={word(value)}" for key, value in given.items()),
    ]


def word(value: object) -> str:
    """Return a value as text for the command line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {word(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(word, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("model", KINDS, ids=name)
def test_a_resumed_job_has_the_bits_of_an_undisturbed_one(model, data: Path, tmp_path: Path) -> None:
    given = words(regularised(model), data)
    straight = train([*given, f"checkpoint.every_steps={HALF}"], tmp_path / "straight").run_dir
    half = checkpoint_folder(straight / CHECKPOINTS, HALF)
    ended = persia("train", *given, f"resume={half}", "--run-dir", tmp_path / "resumed")
    assert ended.exit_code == 0, ended.output
    assert [line["step"] for line in training(straight)] == list(range(1, STEPS + 1))
    assert training(tmp_path / "resumed") == training(straight)
    ends = [checkpoint_folder(run / CHECKPOINTS, STEPS) for run in (straight, tmp_path / "resumed")]
    assert_same_model(*ends)
