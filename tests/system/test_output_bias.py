"""A training begins at the base rate of its labels: on every rank, kept in the configuration, resumed and evaluated."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from persia_cli.errors import DataError
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import newest_checkpoint
from persia_cli.training.dense_state import WEIGHTS, read_tensors
from tests.support.jobs import plan, train

ROWS = 1200


def words_of(folder: Path, rate: float = 0.07) -> list[str]:
    """The arguments of a small job whose dense weights keep their initial values."""
    draw = np.random.default_rng(1)
    columns = {
        "user": draw.integers(0, 40, ROWS),
        "click": (draw.random(ROWS) < rate).astype(float),
        "visits": draw.poisson(7.0, ROWS).astype(float),
        "price": draw.normal(1000.0, 20.0, ROWS),
        "w": draw.random(ROWS).astype(np.float32),
    }
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=500)
    labels = ["click", "visits", "price"]
    data = {"kind": "parquet", "path": str(folder / "a.parquet"), "labels": labels, "sparse": ["user"], "weight": "w"}
    (folder / "data.yaml").write_text(yaml.safe_dump(data | {"split": {"kind": "every", "n": 4}}))
    return [
        f"dataset={folder / 'data.yaml'}",
        "train.losses={visits: {kind: poisson}, price: {kind: mse}}",
        *("mode=sync", "cluster=embedded", "model=ffnn", "model.dim=4", "model.hidden=[8]", "train.batch_size=100"),
        *("model.init=xavier_normal", "model.output_bias=base_rate", "embedding.memory=64MiB", "train.steps=4"),
        "optimizer.dense={kind: sgd, lr: 1e-30}",
    ]


def expected_of(folder: Path) -> list[float]:
    """Outputs that predict the weighted means of the training rows, by numpy."""
    rows = pq.read_table(folder / "a.parquet").to_pydict()
    kept = np.arange(ROWS) % 4 != 0
    w = np.array(rows["w"])[kept]
    click, visits, price = (np.average(np.array(rows[name])[kept], weights=w) for name in ("click", "visits", "price"))
    return [float(np.log(click / (1 - click))), float(np.log(visits)), float(price)]


def test_a_run_begins_there_and_keeps_the_numbers(tmp_path: Path) -> None:
    run_dir = train(words_of(tmp_path), tmp_path / "run").run_dir
    expected = expected_of(tmp_path)
    saved = yaml.safe_load((run_dir / "config.yaml").read_text())["model"]["output_bias"]
    assert saved == pytest.approx(expected, rel=1e-6)
    weights, _ = read_tensors(newest_checkpoint(run_dir / "checkpoints") / "dense" / WEIGHTS)
    (bias,) = [value for value in weights.values() if value.shape == (3,)]
    assert bias.numpy() == pytest.approx(expected, rel=1e-6)
    # The samples change after the training; it goes on, and is evaluated, as it began.
    words_of(tmp_path, rate=0.5)
    refused = CliRunner().invoke(app, ["resume", str(run_dir), "train.steps=6"])
    accepted = str(refused.exception).rpartition(" ")[2]
    for command in (["resume", run_dir, "train.steps=6", accepted], ["eval", run_dir]):
        done = CliRunner().invoke(app, [str(word) for word in command])
        assert done.exit_code == 0, done.output
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["model"]["output_bias"] == saved


def test_a_label_that_is_always_the_same_has_no_base_rate(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="label click is 0 in all training rows, which no network predicts"):
        plan(words_of(tmp_path, rate=0.0), tmp_path / "run")
