"""Labels that are numbers: trained, judged, predicted and shown as numbers, next to one that is a class."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from torchmetrics.functional import mean_absolute_error, mean_squared_error, r2_score
from typer.testing import CliRunner

from persia_cli.engines.job import JobResult
from persia_cli.errors import UserError
from persia_cli.main import app
from persia_cli.observe.journal import EVENTS, read_journal
from tests.support.jobs import evaluation, plan, train
from tests.support.oracle import Oracle

ROWS = {"train": 1200, "eval": 300}
DENSE = {"name": "d", "transform": "piecewise", "bins": 4}
LOSSES = "train.losses={stars: {kind: huber, weight: 2}, visits: {kind: poisson}}"


def write(folder: Path, **changed: object) -> None:
    """Write samples whose labels depend on a user and a number; `changed` are values of first training rows."""
    effects = np.random.default_rng(0).normal(0.0, 1.0, 40)
    for name, rows in ROWS.items():
        draw = np.random.default_rng(rows)
        user, d = draw.integers(0, 40, rows), draw.normal(size=rows)
        stars = 3.0 + effects[user] + d + 0.2 * draw.normal(size=rows)
        visits = draw.poisson(np.exp(0.5 + 0.5 * effects[user])).astype(float)
        columns = {"user": user, "d": d, "stars": stars, "visits": visits, "click": (stars > 3.0).astype(float)}
        if name == "train":
            for column, value in changed.items():
                columns[column] = [value, *columns[column][1:]]
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=500)


def words_of(folder: Path, labels: tuple[str, ...] = ("stars", "visits", "click"), losses: str = LOSSES) -> list[str]:
    """The arguments of a small job on these samples."""
    data = {"kind": "parquet", "path": str(folder), "labels": [*labels], "dense": [DENSE], "sparse": ["user"]}
    split = {"kind": "files", "train": ["train.*"], "eval": ["eval.*"]}
    (folder / "data.yaml").write_text(yaml.safe_dump(data | {"split": split}))
    return [
        f"dataset={folder / 'data.yaml'}",
        *([losses] if losses else []),
        *("mode=sync", "cluster=embedded", "model=ffnn", "model.dim=8", "model.hidden=[32]"),
        *("model.norm=none", "model.dropout=0", "train.batch_size=100"),
        *("train.epochs=6", "train.log_every_steps=1", "eval.every_steps=24", "embedding.memory=64MiB"),
        *("optimizer.embedding={kind: adam, lr: 0.02}", "optimizer.dense={kind: adam, lr: 0.01, eps: 1e-6}"),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of data and runs."""
    made = tmp_path_factory.mktemp("regression")
    write(made)
    return made


@pytest.fixture(scope="module")
def trained(folder: Path) -> JobResult:
    """A run that chose its best evaluation by an error."""
    return train([*words_of(folder), "checkpoint.best_by=rmse_stars"], folder / "run")


def persia(*words: object) -> str:
    """Run a command that must succeed, and return what it printed."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_losses_are_those_of_plain_torch(folder: Path, trained: JobResult, tmp_path: Path) -> None:
    oracle = Oracle(plan(words_of(folder), tmp_path / "run").run, 12)
    ours = [line["loss"] for line in trained.metrics if line["split"] == "train"][:12]
    np.testing.assert_allclose(ours, [oracle.step(step) for step in range(12)], rtol=1e-4)


def test_each_label_has_the_metrics_of_its_kind_and_learns(trained: JobResult) -> None:
    line = evaluation(trained)
    assert {"rmse_stars", "mae_stars", "r2_stars", "calibration_visits", "rmse_visits", "auc_click"} <= set(line)
    assert {"auc_stars", "log_loss_visits", "rmse_click", "calibration_stars"}.isdisjoint(line)
    assert line["r2_stars"] > 0.7
    assert line["r2_visits"] > 0.05
    assert line["auc_click"] > 0.85
    evaluations = {each["step"]: each["rmse_stars"] for each in trained.metrics if each["split"] == "eval"}
    [*_, best] = [event for event in trained.events if event["event"] == "best"]
    assert best["step"] == min(evaluations, key=lambda step: evaluations[step])
    reliability = [event for event in trained.events if event["event"] == "reliability"][-1]
    assert list(reliability["labels"]) == ["click"]


def test_predictions_have_the_errors_of_the_evaluation(folder: Path, trained: JobResult, tmp_path: Path) -> None:
    scores = tmp_path / "scores.parquet"
    persia("predict", trained.run_dir, folder / "eval.parquet", "-o", scores, "--keep", "stars")
    [predicted] = (trained.run_dir / "predictions").iterdir()
    [scored] = [event for event in read_journal(predicted / EVENTS) if event["event"] == "scored"]
    told = json.loads(persia("eval", trained.run_dir, "--json"))
    written, truth = pq.read_table(scores), pq.read_table(folder / "eval.parquet")
    assert written.column_names == ["stars", "stars_prediction", "visits_prediction", "click_probability"]
    for label in ("stars", "visits"):
        predicted = torch.tensor(written.column(f"{label}_prediction").to_numpy().astype(np.float64))
        labels = torch.tensor(truth.column(label).to_numpy().astype(np.float32).astype(np.float64))
        assert told[f"rmse_{label}"] == pytest.approx(mean_squared_error(predicted, labels).sqrt().item())
        assert told[f"mae_{label}"] == pytest.approx(mean_absolute_error(predicted, labels).item())
        assert told[f"r2_{label}"] == pytest.approx(r2_score(predicted, labels).item())
        assert scored["spread"][label]["mean"] == pytest.approx(predicted.mean().item())
        assert scored["spread"][label]["p1"] == pytest.approx(predicted.sort().values[2].item(), rel=1e-3)
    assert written.column("visits_prediction").to_numpy().min() > 0.0


@pytest.mark.parametrize(
    ("label", "value", "losses", "says"),
    [
        ("visits", -1.0, LOSSES, "label column visits are unusable, the first is -1.0"),
        ("stars", float("inf"), LOSSES, "of label column stars are unusable, the first is inf"),
        ("click", 0.0, "", "a label lies between 0 and 1"),
    ],
)
def test_a_label_that_its_loss_cannot_learn_is_named(
    tmp_path: Path, label: str, value: float, losses: str, says: str
) -> None:
    write(tmp_path, **{label: value})
    with pytest.raises(UserError) as raised:
        train([*words_of(tmp_path, losses=losses), "dataset.shuffle=false"], tmp_path / "run")
    assert says in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
