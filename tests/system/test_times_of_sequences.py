"""HSTU reads the times of its history: it learns from them, and requests and their log have them too."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner, Result

from persia_cli.engines.job import JobResult
from persia_cli.main import app
from tests.support.jobs import train
from tests.system.test_serve import serving

ITEMS, USERS, EVENTS, LENGTH = 200, 1500, 12, 8
SHORT, LONG = 60, 100_000
"""Seconds to the next event: after a short time it is of the next item, after a long one of the eleventh."""
START = pd.Timestamp("2024-01-01T00:00:00Z")
JOB = [
    *("model=hstu", "model.attend={item: [seen.item]}", "model.dim=32", "model.layers=2", "model.heads=2"),
    *("optimizer=adam", "optimizer.embedding.lr=0.01", "optimizer.dense.lr=0.01", "cluster=embedded"),
    *("train.losses={liked: {kind: sampled_softmax, negatives: 200}}", "train.batch_size=32", "embedding.memory=16MiB"),
    *("train.epochs=7", "eval.every_epochs=7", "eval.retrieval=[1]", "train.stop_early=null"),
]


def persia(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def events(folder: Path, time: str) -> list[str]:
    """Write events; return the arguments of a job that reads a column as their time."""
    draw = np.random.default_rng(5)
    gap = draw.choice([SHORT, LONG], (USERS, EVENTS))
    step = np.where(gap == SHORT, 1, 11)
    step[:, 0] = draw.integers(0, ITEMS, USERS)
    seconds = gap.cumsum(1) + draw.integers(0, 10**7, (USERS, 1))
    rows = {
        "user": np.repeat(np.arange(USERS), EVENTS),
        "item": (step.cumsum(1) % ITEMS).reshape(-1),
        "moment": START + pd.to_timedelta(seconds.reshape(-1), unit="s"),
        "place": np.tile(np.arange(EVENTS), USERS),
        "liked": 1.0,
    }
    pd.DataFrame(rows).to_parquet(folder / "events.parquet")
    values = {
        "kind": "parquet",
        "path": "events.parquet",
        "labels": ["liked"],
        "sparse": ["item", {"name": "seen.item", "table": "item", "pooling": "none"}],
        "histories": {"seen": {"user": "user", "time": time, "columns": ["item"], "max_length": LENGTH}},
        "samples": {"kind": "windows", "of": "seen"},
        "split": {"kind": "last", "group": "user", "order": time},
        "group_by": "user",
    }
    (folder / "events.yaml").write_text(yaml.safe_dump(values))
    return [f"dataset={folder / 'events.yaml'}", *JOB]


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, JobResult]:
    folder = tmp_path_factory.mktemp("timed")
    return folder, train(events(folder, "moment"), folder / "run")


def recall(result: JobResult) -> float:
    [*_, last] = [line for line in result.metrics if line["split"] == "eval"]
    return float(last["recall@1"])


@pytest.mark.timeout(300)
def test_times_decide_the_next_item(timed: tuple[Path, JobResult], tmp_path: Path) -> None:
    """All gaps of places are 1, so nothing is known of the time: at most every second item can be found."""
    assert recall(timed[1]) > 0.8
    assert recall(train(events(tmp_path, "place"), tmp_path / "run")) < 0.65


def test_requests_have_times_and_their_log_has_the_samples_of_the_events(
    timed: tuple[Path, JobResult], tmp_path: Path
) -> None:
    folder, _ = timed
    run, model, log = folder / "run", tmp_path / "model", tmp_path / "log"
    whole = pd.read_parquet(folder / "events.parquet")
    asked = whole[whole.user < 30].groupby("user").nth([0, 5, 11])
    rows: list[dict[str, Any]] = []
    for row in asked.itertuples():
        before = whole[(whole.user == row.user) & (whole.moment < row.moment)][-LENGTH:]
        times = [moment.isoformat() for moment in before.moment]
        rows.append({"item": row.item, "seen.item": before["item"].tolist(), "seen.moment": times})
        rows[-1]["moment"] = row.moment.isoformat()
    asked[["user", "item", "moment"]].to_parquet(tmp_path / "asked.parquet")
    exported = persia("export", run, "-o", model, "--verify", folder / "events.parquet")
    assert exported.exit_code == 0, exported.output
    with serving(model, tmp_path / "serve", "--workers", "1", "--log", str(log)) as server:
        ask = f"/v1/models/{model.name}:predict"
        got = server.ask("POST", ask, json.dumps({"instances": rows}).encode())
        assert got.status == 200, got.body
        for change, sentence in (
            ({"seen.moment": rows[1]["seen.moment"][1:]}, "seen.moment has another number of times than seen.item"),
            ({"moment": 1_700_000_000}, "field moment holds integers, but each time of seen.item is a date or time"),
            ({"moment": "2020-01-01"}, "seen.moment does not ascend up to moment"),
        ):
            wrong = server.ask("POST", ask, json.dumps({"instances": [rows[1] | change]}).encode())
            assert wrong.status == 400
            assert sentence in wrong.body.decode()
        missing = {name: value for name, value in rows[1].items() if name != "seen.moment"}
        wrong = server.ask("POST", ask, json.dumps({"instances": [missing]}).encode())
        assert (wrong.status, "no field seen.moment" in wrong.body.decode()) == (400, True)
    scores = []
    for number, path in enumerate((tmp_path / "asked.parquet", log)):
        done = persia("predict", run, path, "-o", tmp_path / f"{number}.parquet")
        assert done.exit_code == 0, done.output
        scores.append(pd.read_parquet(tmp_path / f"{number}.parquet")["liked_probability"].to_numpy())
    assert scores[0].tobytes() == scores[1].tobytes(), "the log has the bits of the events"
    assert np.abs(scores[0] - np.array(got.json()["predictions"])).max() <= 5e-6


def test_a_user_is_recommended_what_fits_the_time(timed: tuple[Path, JobResult], tmp_path: Path) -> None:
    _, result = timed
    judged = persia("eval", result.run_dir, "--retrieval", "--json")
    assert json.loads(judged.stdout)["model"]["recall@1"] == pytest.approx(recall(result))
    moments = [START, START + pd.Timedelta(seconds=LONG)]
    users: dict[str, list[Any]] = {"user": [-1, -2], "seen.item": [[100, 101]] * 2, "seen.moment": [moments] * 2}
    users["moment"] = [moments[1] + pd.Timedelta(seconds=gap) for gap in (SHORT, LONG)]
    pd.DataFrame(users).to_parquet(tmp_path / "users.parquet")
    done = persia("recommend", result.run_dir, "--users", tmp_path / "users.parquet", "-o", tmp_path / "lists.parquet")
    assert done.exit_code == 0, done.output
    assert [items[0] for items in pd.read_parquet(tmp_path / "lists.parquet")["items"]] == [102, 112]
