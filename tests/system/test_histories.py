"""Jobs whose samples get their histories from events: as with ready lists, resumed, refused, and served."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner, Result

from persia_cli.errors import UserError
from persia_cli.main import app
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, newest_checkpoint
from tests.support.checkpoints import assert_same_model
from tests.support.jobs import evaluation, losses, train
from tests.system.test_serve import serving

pytestmark = pytest.mark.slow

ROWS, LENGTH = 1200, 6
JOB = [
    *("model=din", "model.attend={item: [seen.item]}", "model.dim=8", "model.hidden=[16]", "optimizer=adam"),
    *("mode=sync", "cluster=embedded", "train.batch_size=32", "train.epochs=1", "train.log_every_steps=5"),
    *("train.threads=1", "embedding.memory=64MiB", "checkpoint.at_end=true"),
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSIA_CACHE_DIR", str(tmp_path / "cache"))


def persia(*words: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def write(folder: Path) -> dict[str, Any]:
    """Write made-up events, and the same with ready lists; return the events."""
    draw = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "user": draw.integers(0, 40, ROWS),
        "ts": draw.integers(0, 300, ROWS),
        "item": draw.integers(1, 60, ROWS),
        "liked": draw.integers(0, 2, ROWS),
    }
    user, ts = columns["user"], columns["ts"]
    order = np.lexsort((ts, user))
    lists = []
    for row in range(ROWS):
        mine = order[user[order] == user[row]]
        lists.append(columns["item"][mine[ts[mine] < ts[row]]][-LENGTH:])
    for name, data in (("events", columns), ("ready", columns | {"last": lists})):
        (folder / name).mkdir()
        pq.write_table(pa.table(data), folder / name / "rows.parquet", row_group_size=100)
    return columns


def described(folder: Path, kind: str) -> str:
    """Write the description of a data set; return the argument that names it."""
    sequence = {"name": "seen.item", "table": "item", "pooling": "none"}
    values: dict[str, Any] = {"kind": "parquet", "path": kind, "labels": ["liked"]}
    values["split"] = {"kind": "time", "column": "ts", "eval_fraction": 0.2}
    if kind == "ready":
        sequence |= {"column": "last", "max_length": LENGTH}
    else:
        values["histories"] = {"seen": {"user": "user", "time": "ts", "columns": ["item"], "max_length": LENGTH}}
    (folder / f"{kind}.yaml").write_text(yaml.safe_dump(values | {"sparse": ["user", "item", sequence]}))
    return f"dataset={folder / kind}.yaml"


def test_training_is_to_the_bit_as_with_ready_lists_and_resumes(tmp_path: Path) -> None:
    columns = write(tmp_path)
    found = train([described(tmp_path, "events"), *JOB], tmp_path / "found")
    given = train([described(tmp_path, "ready"), *JOB, "cluster.data_loaders=2"], tmp_path / "given")
    assert losses(found) == losses(given)
    assert evaluation(found)["auc"] == evaluation(given)["auc"]
    whole = newest_checkpoint(tmp_path / "found" / CHECKPOINTS)
    assert_same_model(whole, newest_checkpoint(tmp_path / "given" / CHECKPOINTS))

    half = tmp_path / "half"
    train([described(tmp_path, "events"), *JOB, "train.steps=11"], half)
    events = tmp_path / "events/rows.parquet"
    before = events.read_bytes()
    pq.write_table(pa.table(columns | {"item": columns["item"][::-1]}), events, row_group_size=100)
    refused = persia("resume", half, "train.steps=null")
    assert isinstance(refused.exception, UserError)
    assert f"{events} and 1 more file have changed since the checkpoint was saved" in str(refused.exception)
    moved = tmp_path / "moved.parquet"
    moved.write_bytes(before)
    events.write_bytes(before)
    found_there = f"dataset.histories.seen.path={moved}"
    done = persia("resume", half, "train.steps=null", found_there)
    assert done.exit_code == 0, done.exception
    assert_same_model(whole, newest_checkpoint(half / CHECKPOINTS))


def test_requests_have_the_lists_and_their_log_scores_as_the_events_do(tmp_path: Path) -> None:
    columns = write(tmp_path)
    run, model, log = tmp_path / "run", tmp_path / "model", tmp_path / "log"
    train([described(tmp_path, "events"), *JOB], run)
    events = tmp_path / "events/rows.parquet"
    scores = [tmp_path / "events.parquet", tmp_path / "log.parquet"]
    for words in (["predict", run, events, "-o", scores[0]], ["export", run, "-o", model]):
        done = persia(*words)
        assert done.exit_code == 0, done.output
    lists = pq.read_table(tmp_path / "ready/rows.parquet").column("last").to_pylist()
    with serving(model, tmp_path / "serve", "--workers", "1", "--log", str(log)) as server:
        rows = [
            {"user": int(columns["user"][row]), "item": int(columns["item"][row]), "seen.item": lists[row]}
            for row in range(100)
        ]
        got = server.ask("POST", "/v1/models/model:predict", json.dumps({"instances": rows}).encode())
        assert got.status == 200, got.body
    assert persia("predict", run, log, "-o", scores[1]).exit_code == 0
    for path in scores:
        predicted = pq.read_table(path).column("liked_probability").to_numpy()[:100]
        assert np.abs(predicted - np.array(got.json()["predictions"])).max() <= 5e-6
    logged = pq.read_table(next(log.glob("*.parquet")))
    assert logged.column("seen.item").to_pylist() == lists[:100]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            ["dataset.histories.seen.columns=[item, shop]"],
            "there is no column shop (sparse column of dataset.histories",
        ),
        (["dataset.sparse=[user, item, {name: seen.item, pooling: none}]"], "does not read the table of item"),
        (["dataset.histories.seen.path=nowhere"], "dataset.histories.seen.path=nowhere"),
    ],
)
def test_a_wrong_history_is_refused_before_the_work(tmp_path: Path, settings: list[str], text: str) -> None:
    write(tmp_path)
    refused = persia("train", described(tmp_path, "events"), *JOB, *settings, "--run-dir", tmp_path / "run")
    assert isinstance(refused.exception, UserError)
    assert text in str(refused.exception)
    assert not (tmp_path / "run/checkpoints").exists()
