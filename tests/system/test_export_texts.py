"""An exported model gives texts of requests the scores of `persia predict`, for the fields of CSV and for dates."""

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from persia_cli.main import app
from persia_cli.serving.http.app import ServingApp
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.predictor import Predictor
from tests.support.asgi import ask

pytestmark = pytest.mark.slow

CONF = """
defaults: [base, {override dataset: parquet}, _self_]
name: towns
dataset:
  labels: [y]
  COLUMNS
  fill: 0
  split: {kind: every, n: 5}
model: {dim: 4, hidden: [8]}
embedding: {memory: 16MiB}
optimizer: {embedding: {lr: 0.5}}
train: {batch_size: 8, epochs: 3}
cluster: {kind: embedded}
"""
CSV = """dense: [Age, paid]
  sparse: ["city/town", {name: user, pooling: mean}]
  csv: {nulls: ["", NA]}"""
DATES = """dense: [seen]
  sparse: [day, {name: hour, column: seen, transform: hour}, shop, {name: known, column: shop, missing_id: none}]"""
CITIES = ["", "NA", "Rome", " Oslo", "Lima"]


def rows(count: int) -> list[dict[str, str]]:
    draw = random.Random(4)
    return [
        {
            "y": str(int(draw.random() < 0.8 if (city := draw.choice(CITIES)) in ("", "NA") else draw.random() < 0.2)),
            "city/town": city,
            "user": draw.choice(["", "NA", "u3", " 7", "x-1"]),
            "Age": draw.choice(["", "NA", *(f" {draw.random():.6f}\t" for _ in range(20))]),
            "paid": draw.choice(["true", "False", ""]),
        }
        for _ in range(count)
    ]


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], tuple[ServingApp, Any]]:
    """Trains on a file, exports, and returns the server and the scores of `persia predict` for that file."""
    monkeypatch.setenv("PERSIA_CACHE_DIR", str(tmp_path / "cache"))

    def made(data: Path, columns: str) -> tuple[ServingApp, Any]:
        run, model = tmp_path / "run", tmp_path / "towns"
        (tmp_path / "conf.yaml").write_text(CONF.replace("COLUMNS", columns))
        for words in (
            ["train", f"conf={tmp_path / 'conf.yaml'}", f"dataset.path='{data}'", "--run-dir", str(run)],
            ["export", str(run), "-o", str(model), "--verify", str(data)],
            ["predict", str(run), str(data), "-o", str(tmp_path / "scores.parquet")],
        ):
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, done.output or done.exception
        expected = pq.read_table(tmp_path / "scores.parquet").column("y_probability").to_numpy()
        return ServingApp(Predictor.open(model), ServerSettings(str(model))), expected

    return made


def predicted(server: ServingApp, instances: list[dict[str, Any]]) -> Any:
    answer = ask(server, "POST", "/v1/models/towns:predict", json.dumps({"instances": instances}).encode())
    assert answer.status == 200, answer.body
    return np.array(answer.json()["predictions"])


def test_texts_of_requests_have_the_scores_of_the_fields_of_csv(exported: Any, tmp_path: Path) -> None:
    data, samples = tmp_path / "data.csv", rows(400)
    with data.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(samples[0]))
        writer.writeheader()
        writer.writerows(samples)
    server, expected = exported(data, CSV)
    instances: list[dict[str, Any]] = [
        {name: [text] if name == "user" else text for name, text in row.items() if name != "y"} for row in samples
    ]
    assert np.abs(predicted(server, instances) - expected).max() <= 5e-6
    by_city = {city: {e for e, r in zip(expected, samples, strict=True) if r["city/town"] == city} for city in CITIES}
    assert min(by_city[""]) > max(by_city["Rome"])
    [example] = ask(server, "GET", "/v2/models/towns/example").json()["instances"]
    assert example["city/town"] in (None, "Rome", " Oslo", "Lima")


def test_dates_and_nulls_of_requests_have_the_scores_of_those_of_parquet(exported: Any, tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    days = pa.array((draw.integers(19_700, 19_730, 400)).astype(np.int32)).cast(pa.date32())
    seen = pa.array(draw.integers(17 * 10**14, 17 * 10**14 + 10**12, 400)).cast(pa.timestamp("us"))
    shop = pa.array(draw.integers(0, 4, 400), mask=draw.random(400) < 0.3)
    likely = pc.if_else(pc.is_null(shop), 0.9, 0.3).to_numpy()
    columns = {"y": pa.array((draw.random(400) < likely).astype(np.int8)), "day": days, "seen": seen, "shop": shop}
    pq.write_table(pa.table(columns), tmp_path / "data.parquet", row_group_size=100)
    server, expected = exported(tmp_path / "data.parquet", DATES)
    instances = [
        {"day": day.isoformat(), "seen": time.isoformat(), "shop": where}
        for day, time, where in zip(days.to_pylist(), seen.to_pylist(), shop.to_pylist(), strict=True)
    ]
    assert np.abs(predicted(server, instances) - expected).max() <= 5e-6
    nulls = shop.is_null().to_numpy(zero_copy_only=False)
    assert expected[nulls].mean() > expected[~nulls].mean() + 0.1
