"""`persia serve --log`: what was answered is there once, whatever dies, and is read as a data set."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from persia_cli.main import app
from tests.conftest import poll_for
from tests.support.lists import EVAL_ROWS
from tests.support.small_model import write_small_model
from tests.system.test_serve import INFER, INPUTS, READY_S, Server, serving

pytestmark = pytest.mark.slow


def ask(server: Server, *names: str) -> None:
    for name in names:
        body = json.dumps({"inputs": INPUTS, "id": name}).encode()
        assert server.ask("POST", INFER, body).status == 200


def table(folder: Path) -> Any:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])


def hidden(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix != ".parquet"}


def test_each_request_is_logged_once_but_for_those_of_a_killed_worker(tmp_path: Path) -> None:
    model, log = write_small_model(tmp_path / "shop"), tmp_path / "log"
    with serving(model, tmp_path / "one", "--workers", "2", "--log", str(log)) as server:
        assert log.stat().st_mode & 0o777 == 0o700
        ask(server, *(f"lost {number}" for number in range(20)))
        poll_for(lambda: hidden(log), READY_S, "files are begun")
        left = hidden(log)
        for worker in server.workers():
            worker.kill()
        poll_for(lambda: not hidden(log) & left, READY_S, "what the workers had is removed")
        poll_for(lambda: len(server.workers()) == 2, READY_S, "the next workers are there")
        ask(server, *(f"kept {number}" for number in range(20)))
    assert server.process.returncode == 0
    assert hidden(log) == set()
    counts = table(log).column("request_id").value_counts().to_pylist()
    assert sorted(each["values"] for each in counts) == sorted(f"kept {number}" for number in range(20))
    assert {each["counts"] for each in counts} == {3}
    told = server.log.read_text()
    assert f"logging   1 of the requests, in {log}" in told
    assert f"logged    20 requests in {log}\n" in told


def test_what_is_logged_is_a_data_set_of_the_run(lists: Path, lists_run: Path, tmp_path: Path) -> None:
    model, log = tmp_path / "shop", tmp_path / "log"
    done = CliRunner().invoke(app, ["export", str(lists_run), "-o", str(model)])
    assert done.exit_code == 0, done.output
    asked = pq.read_table(lists / "eval.parquet").drop_columns(["click", "buy", "weight"])
    scores: list[dict[str, float]] = []
    options = ("--workers", "1", "--log", str(log), "--log-every", "1")
    with serving(model, tmp_path / "serve", *options) as server:
        for first in range(0, EVAL_ROWS, 10):
            rows = asked.slice(first, 10).to_pylist()
            got = server.ask("POST", "/v1/models/shop:predict", json.dumps({"instances": rows}).encode())
            assert got.status == 200, got.body
            scores += got.json()["predictions"]
        poll_for(lambda: list(log.glob("*.parquet")), READY_S, "a file is there while requests are answered")
    found = tmp_path / "scores.parquet"
    done = CliRunner().invoke(app, ["predict", str(lists_run), str(log), "-o", str(found), "--keep", "request_id"])
    assert done.exit_code == 0, done.output
    predicted = pq.read_table(found)
    assert predicted.num_rows == EVAL_ROWS
    assert predicted.column("request_id").to_pylist() == table(log).column("request_id").to_pylist()
    for label in ("click", "buy"):
        name = f"{label}_probability"
        told = [score[name] for score in scores]
        assert table(log).column(name).to_pylist() == told
        assert np.abs(predicted.column(name).to_numpy() - np.array(told)).max() <= 5e-6
