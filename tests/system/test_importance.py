"""`persia eval --importance` against a plain loop over the samples, and what it must not change."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torchmetrics.functional import auroc, mean_squared_error
from typer.testing import CliRunner

from persia_cli.data.read.source import open_source
from persia_cli.engines.job import JobResult
from persia_cli.errors import UserError
from persia_cli.evaluation import importance
from persia_cli.evaluation.loaded_model import LoadedModel
from persia_cli.main import app
from persia_cli.observe.saved_run import find_model
from tests.support.jobs import train

pytestmark = pytest.mark.smoke
ROWS = {"train": 1500, "eval": 400}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """A model of two labels, whose first one depends on an item and a list, and not on the noise."""
    folder = tmp_path_factory.mktemp("importance")
    for name, rows in ROWS.items():
        draw = np.random.default_rng(rows)
        # Evaluation has items that training has not.
        item, noise, d = (
            draw.integers(0, 30 + 3 * (name == "eval"), rows),
            draw.integers(0, 5, rows),
            draw.normal(size=rows),
        )
        tags = [draw.integers(0, 6, length).tolist() for length in draw.integers(0, 4, rows)]
        stars = 2.0 * (item % 3) + [sum(each) / 4 for each in tags] + d
        table = {"item": item, "noise": noise, "tags": tags, "d": d, "stars": stars, "like": (stars > 4).astype(float)}
        pd.DataFrame(table).to_parquet(folder / f"{name}.parquet")
    words = [
        *("conf=base", "dataset=parquet", f"dataset.path='{folder}'", "dataset.labels=[like, stars]"),
        "dataset.sparse=[item, noise, {name: tags, pooling: mean}]",
        *("dataset.dense=[{name: d, transform: piecewise, bins: 4}]", "train.losses={stars: {kind: mse}}"),
        "dataset.split={kind: files, train: [train.parquet], eval: [eval.parquet]}",
        *("cluster=embedded", "mode=sync", "train.batch_size=50", "train.epochs=4", "embedding.memory=16MiB"),
        *(
            "model=ffnn",
            "model.dim=8",
            "model.hidden=[32]",
            "model.dropout=0",
            "optimizer=adagrad",
            "optimizer.embedding.lr=0.05",
        ),
    ]
    return train(words, folder / "run")


def judge(run: Path, *given: str) -> dict[str, Any]:
    ended = CliRunner().invoke(app, ["eval", str(run), "--importance", "--json", *given])
    assert ended.exit_code == 0, ended.output
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def by_loops(run: Path, data: pd.DataFrame, column: str | None, order: np.ndarray | None) -> dict[str, float]:
    """The metrics of `persia predict` on rows in a file, whose values of one column come from other rows."""
    if column is not None:
        data = data.assign(**{column: data[column].to_numpy()[order]})
    folder = run / "shuffled"
    folder.mkdir(exist_ok=True)
    data.to_parquet(folder / "rows.parquet")
    words = ["predict", str(run), str(folder), "-o", str(run / "scores.parquet"), "--logits", "--overwrite"]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    scores = pd.read_parquet(run / "scores.parquet")
    like, stars = (torch.tensor(data[name].to_numpy(), dtype=torch.float32) for name in ("like", "stars"))
    auc = auroc(torch.tensor(scores["like_logit"].to_numpy()).sigmoid(), like.int(), "binary")
    error = mean_squared_error(torch.tensor(scores["stars_prediction"].to_numpy()), stars, squared=False)
    return {"auc_like": float(auc), "rmse_stars": float(error)}


def test_it_is_that_of_plain_loops(run: JobResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples are read in three blocks, between which no values are exchanged."""
    monkeypatch.setattr(importance, "REPEATS", 2)
    monkeypatch.setattr(importance, "BLOCK", 150)
    found = judge(run.run_dir)
    data = pd.read_parquet(run.run_dir.parent / "eval.parquet")
    base = by_loops(run.run_dir, data, None, None)
    assert found["metrics"] == pytest.approx(base, abs=1e-4)
    features = {each["name"]: each for each in found["features"]}
    assert [each["name"] for each in found["features"]][-1] == "noise"
    for number, name in enumerate(("d", "item", "noise", "tags"), 1):
        figures = []
        for repeat in (0, 1):
            parts = [
                start + np.random.default_rng([0, number, repeat, start]).permutation(stop - start)
                for start, stop in ((0, 133), (133, 266), (266, 400))
            ]
            figures.append(by_loops(run.run_dir, data, name, np.concatenate(parts)))
        for key, sign in (("auc_like", 1), ("rmse_stars", -1)):
            losses = [sign * (base[key] - each[key]) for each in figures]
            assert features[name]["worse"][key] == pytest.approx(np.mean(losses), abs=2e-4)
            assert features[name]["error"][key] == pytest.approx(abs(losses[0] - losses[1]) / 2, abs=2e-4)


def test_scoring_creates_no_rows(run: JobResult) -> None:
    model = find_model(run.run_dir)
    network = LoadedModel(model.run, model.checkpoint)
    source = open_source(model.run.dataset, "eval", 0, model.run.links)
    batch = source.read(0, 0, 400)
    source.close()
    before = [store.row_count for store in network._shard.stores]
    known = network.logits(batch)
    unknown = network.logits(replace(batch, ids=batch.ids + np.uint64(1000)))
    assert [store.row_count for store in network._shard.stores] == before
    assert not np.array_equal(known, unknown)
    assert np.array_equal(network.logits(batch), known)


def test_what_cannot_be_is_refused_in_a_sentence(run: JobResult, tmp_path: Path) -> None:
    of_one_class = pd.read_parquet(run.run_dir.parent / "eval.parquet").assign(like=1.0)
    of_one_class.to_parquet(tmp_path / "rows.parquet")
    for given, sentence in (
        (("--importance", "--retrieval"), "one at a time"),
        (("--importance", "--data", str(tmp_path)), "auc_like is not defined"),
    ):
        ended = CliRunner().invoke(app, ["eval", str(run.run_dir), *given])
        assert isinstance(ended.exception, UserError)
        assert sentence in str(ended.exception)
