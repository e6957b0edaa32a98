"""A model trained from CSV gives a request's texts the scores of `persia predict` for the same fields of a file."""

import csv
import json
import random
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from persia_cli.main import app
from persia_cli.server.app import ServingApp
from persia_cli.server.settings import ServerSettings
from persia_cli.serving.predictor import Predictor
from tests.support.asgi import ask

pytestmark = pytest.mark.slow

CONF = """
defaults: [base, {override dataset: parquet}, _self_]
name: towns
dataset:
  labels: [y]
  dense: [Age, paid]
  sparse: ["city/town", {name: user, pooling: mean}]
  csv: {nulls: ["", NA]}
  fill: 0
  split: {kind: every, n: 5}
model: {dim: 4, hidden: [8]}
embedding: {memory: 16MiB}
optimizer: {embedding: {lr: 0.5}}
train: {batch_size: 8, epochs: 3}
cluster: {kind: embedded}
"""
CITIES = ["", "NA", "Rome", " Oslo", "Lima"]


def rows(count: int) -> list[dict[str, str]]:
    draw = random.Random(4)
    return [
        {
            "y": str(int(draw.random() < 0.8 if (city := draw.choice(CITIES)) in ("", "NA") else draw.random() < 0.2)),
            "city/town": city,
            "user": draw.choice(["", "NA", "3.0", " 7", "1e1"]),
            "Age": draw.choice(["", "NA", *(f" {draw.random():.6f}\t" for _ in range(20))]),
            "paid": draw.choice(["true", "False", ""]),
        }
        for _ in range(count)
    ]


def test_texts_of_requests_have_the_scores_of_the_fields_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSIA_CACHE_DIR", str(tmp_path / "cache"))
    data, run, model = tmp_path / "data.csv", tmp_path / "run", tmp_path / "towns"
    (tmp_path / "conf.yaml").write_text(CONF)
    samples = rows(400)
    with data.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(samples[0]))
        writer.writeheader()
        writer.writerows(samples)
    for words in (
        ["train", f"conf={tmp_path / 'conf.yaml'}", f"dataset.path='{data}'", "--run-dir", str(run)],
        ["export", str(run), "-o", str(model), "--verify", str(data)],
        ["predict", str(run), str(data), "-o", str(tmp_path / "scores.parquet")],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output or done.exception
    expected = pq.read_table(tmp_path / "scores.parquet").column("y_probability").to_numpy()
    server = ServingApp(Predictor.open(model), ServerSettings(str(model)))
    instances = [
        {name: [text] if name == "user" else text for name, text in row.items() if name != "y"} for row in samples
    ]
    answer = ask(server, "POST", "/v1/models/towns:predict", json.dumps({"instances": instances}).encode())
    assert answer.status == 200, answer.body
    assert np.abs(np.array(answer.json()["predictions"]) - expected).max() <= 5e-6
    by_city = {city: {e for e, r in zip(expected, samples, strict=True) if r["city/town"] == city} for city in CITIES}
    assert min(by_city[""]) > max(by_city["Rome"])
    [example] = ask(server, "GET", "/v2/models/towns/example").json()["instances"]
    assert example["city/town"] is None
