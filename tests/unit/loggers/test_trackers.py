"""Trackers have the lines of a run, read back by their own means."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from persia_cli.config.record import CONFIG, read_run
from persia_cli.loggers.feed import state_in
from persia_cli.loggers.logger import LOGGERS, TENSORBOARD, Facts
from persia_cli.loggers.process import Loggers, send_rest
from persia_cli.loggers.prometheus import Prometheus
from tests.conftest import poll_for
from tests.support.logged import (
    add_end,
    add_lines,
    free_port,
    in_mlflow,
    in_tensorboard,
    in_trackio,
    in_wandb,
    made_up_run,
)

STEPS = [10, 20, 30]
LIMIT_S = 60.0


def get(address: str) -> str:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@pytest.mark.processes
def test_tensorboard_trackio_and_prometheus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run_dir, port = tmp_path / "run", free_port()
    made_up_run(run_dir, STEPS[:2], loggers=["tensorboard", "trackio"], metrics_port=port)
    loggers = Loggers(read_run(run_dir / CONFIG), run_dir)
    page = f"http://127.0.0.1:{port}/metrics"
    poll_for(lambda: 'persia_step{split="eval"} 20.0' in get(page), LIMIT_S, "the page with two evaluations")
    add_lines(run_dir, STEPS[2:])
    poll_for(lambda: 'persia_recall_10{split="eval"} 0.25' in get(page), LIMIT_S, "the third")
    add_end(run_dir, "done")
    assert loggers.close(LIMIT_S) == []
    assert get(page) == ""
    scalars = in_tensorboard(run_dir / TENSORBOARD)
    assert scalars["train/auc"] == [(step, float(np.float32(1 - 1 / step))) for step in STEPS]
    [points] = in_trackio(tmp_path / "trackio", "small").values()
    assert points["eval/auc"] == [(step, 1 - 1 / step) for step in STEPS]
    assert points["summary/auc"] == [(30, 1 - 1 / 30)]


def test_prometheus_has_a_value_of_each_label_whatever_its_name(tmp_path: Path) -> None:
    names, port = ("点击", "购买", "buy-1d", "buy_1d", 'a quote"'), free_port()
    made_up_run(tmp_path, dataset={"labels": names}, metrics_port=port)
    values = {f"{metric}_{name}": number / 8 for number, name in enumerate(names) for metric in ("auc", "window_auc")}
    server = Prometheus()
    server.start(Facts("shop", "first", tmp_path, None, 0, names), {"metrics_port": port})
    try:
        server.line("eval", 10, 1.0, {"loss": 0.5, **values})
        samples = [each for family in text_string_to_metric_families(get(f"http://127.0.0.1:{port}/metrics"))
                   for each in family.samples]  # fmt: skip
    finally:
        server.end("done", {})
    for metric in ("persia_auc", "persia_window_auc"):
        found = {each.labels["label"]: each.value for each in samples if each.name == metric}
        assert found == {name: number / 8 for number, name in enumerate(names)}
    assert [each.labels for each in samples if each.name == "persia_loss"] == [{"split": "eval"}]


@pytest.mark.processes
def test_a_logger_that_is_killed_or_hangs_is_reported_and_left(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # It takes connections and never answers.
        port = listener.getsockname()[1]
        made_up_run(tmp_path, STEPS, loggers=["tensorboard"], metrics_port=port)
        loggers = Loggers(read_run(tmp_path / CONFIG), tmp_path)
        poll_for(lambda: state_in(tmp_path, "prometheus").failures, LIMIT_S, "a port that is taken")
        [failure] = loggers.failures()
        assert "prometheus: OSError" in failure
        assert loggers.failures() == []
        poll_for(lambda: state_in(tmp_path, "tensorboard").sent == {"train": 30, "eval": 30}, LIMIT_S, "all lines")
        os.kill(state_in(tmp_path, "tensorboard").process, signal.SIGSTOP)
        add_lines(tmp_path, [40])
        began = time.monotonic()
        [gap] = loggers.close(0.5)
        assert time.monotonic() - began < 5
        assert "tensorboard lacks 2 lines" in gap
    send_rest(tmp_path)
    assert [step for step, _ in in_tensorboard(tmp_path / TENSORBOARD)["eval/auc"]] == [*STEPS, 40]


@pytest.mark.processes
def test_the_command_sends_what_is_missing_and_ends(tmp_path: Path) -> None:
    made_up_run(tmp_path, STEPS, loggers=["tensorboard"])
    for folder, expected in ((tmp_path, 0), (tmp_path / "none", 2)):
        command = [sys.executable, "-m", "persia_cli.loggers", str(folder)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            assert (process.wait(LIMIT_S), process.stderr.read().count(b"error:")) == (expected, expected // 2)
    assert [step for step, _ in in_tensorboard(tmp_path / TENSORBOARD)["eval/auc"]] == STEPS


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[None]:
    """Run an MLflow server with its database and files in a folder."""
    places = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files")]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1", *places]
    with (folder / "server.log").open("ab") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        poll_for(lambda: get(f"http://127.0.0.1:{port}/health") == "OK", 120, "the MLflow server")
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
def test_an_mlflow_server_that_goes_and_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir, port = tmp_path / "run", free_port()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    made_up_run(run_dir, [10], loggers=["mlflow"])
    loggers = Loggers(read_run(run_dir / CONFIG), run_dir)
    poll_for(lambda: loggers.failures(), LIMIT_S, "a server that is missing")
    with mlflow_server(tmp_path, port):
        poll_for(lambda: state_in(run_dir, "mlflow").sent, LIMIT_S, "the first lines")
    add_lines(run_dir, [20])
    with mlflow_server(tmp_path, port):
        add_lines(run_dir, [30])
        add_end(run_dir, "done")
        assert loggers.close(LIMIT_S) == []
        state = state_in(run_dir, "mlflow")
        # A kill between a line and the state: the line is sent again, and the server has it once.
        repeating = msgspec.structs.replace(state, sent={"train": 10, "eval": 10})
        (run_dir / LOGGERS / "mlflow.json").write_bytes(msgspec.json.encode(repeating))
        made_up_run(run_dir, loggers=["mlflow"], train={"batch_size": 64})  # MLflow keeps the first parameters.
        send_rest(run_dir)
        assert state_in(run_dir, "mlflow").sent == state.sent
    points = in_mlflow(tmp_path / "mlflow.db", str(state.run))
    assert points["eval/auc"] == [(step, 1 - 1 / step) for step in STEPS]
    assert points["train/loss"] == [(step, 0.5) for step in STEPS]
    assert points["eval/recall_at_10"] == [(step, 0.25) for step in STEPS]
    assert [path.name for path in (tmp_path / "files").rglob("*.yaml")] == [CONFIG]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_has_each_line_in_its_offline_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    made_up_run(tmp_path, STEPS[:2], loggers=["wandb"])
    send_rest(tmp_path)
    first = state_in(tmp_path, "wandb").run
    time.sleep(1.1)  # W&B names its folders by seconds.
    add_lines(tmp_path, STEPS[2:])
    send_rest(tmp_path)
    assert state_in(tmp_path, "wandb").run == first
    files = sorted((tmp_path / LOGGERS / "wandb").glob(f"offline-run-*/run-{first}.wandb"))
    rows = [row for file in files for row in in_wandb(file)]
    assert [row["_step"] for row in rows] == STEPS
    assert [row["eval/auc"] for row in rows] == [1 - 1 / step for step in STEPS]
    assert [row["train/loss"] for row in rows] == [0.5] * 3
