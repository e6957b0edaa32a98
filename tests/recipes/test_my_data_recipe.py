"""The recipe to copy, and what a person does with it."""

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.data.prepare.recipe import PrepareOptions, copy_folder, folder_of, load_recipe
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.ids import text_id
from tests.support.prepared import prepare

FOLDER = load_recipe("my_data").folder


def test_values_are_those_of_the_file(tmp_path: Path) -> None:
    report = prepare("my_data", FOLDER / "purchases.csv", tmp_path / "out")
    with (FOLDER / "purchases.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    made = pq.read_table(report.files[0]).to_pylist()
    assert len(made) == len(rows) == 2500
    for row, got in zip(rows, made, strict=True):
        assert got["label"] == (row["bought"] == "yes")
        assert got["time"] == int(row["time"])
        assert got["price"] == pytest.approx(np.log1p(float(row["price"])))
        assert got["age_unknown"] == (not row["age"])
        assert got["age"] == pytest.approx((float(row["age"] or 40) - 40) / 15)
        for name in ("user", "item", "category"):
            assert got[name] == text_id(name, row[name])
        assert got["last_item"] == (text_id("item", row["last_item"]) if row["last_item"] else None)
        assert got["tags"] == [text_id("tags", tag) for tag in row["tags"].split("|") if tag]


def test_a_copy_is_a_separate_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copied = {file.name for file in copy_folder(folder_of("my_data"), Path("mine"))}
    assert {"README.md", "prepare.py", "conf.yaml", "purchases.csv"} <= copied
    code = Path("mine/prepare.py")
    code.write_text(code.read_text().replace('["no", "yes"]', '["yes", "no"]'))
    recipe = load_recipe("./mine")
    report = recipe.prepare(Path("mine/purchases.csv"), Path("data/mine"), PrepareOptions(), lambda done, total: None)
    labels = pq.read_table(report.files[0]).column("label").to_numpy()
    assert labels.mean() > 0.5
    facts = inspect(compose_run(["conf=mine/conf.yaml"]).dataset)
    assert (facts.train_rows, facts.eval_rows, facts.dense, len(facts.sparse)) == (2000, 500, 3, 5)
