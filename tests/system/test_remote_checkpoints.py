"""A run with its checkpoints in an object store: saved, evaluated and resumed there, whatever the network does."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from persia_cli.engines.embedded import EmbeddedEngine
from persia_cli.engines.job import JobResult
from persia_cli.observe.history import RunOutcome, read_history
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.observe.remote_records import copy_record
from persia_cli.storage.addresses import VARIABLE
from persia_cli.storage.locations import Location, address_of, location_of, subfolders
from persia_cli.store.checkpoints.manifest import finished_steps, read_manifest, verify
from tests.support.jobs import losses, plan
from tests.support.proxy import Proxy
from tests.support.s3 import SECRET, ObjectStore, object_store
from tests.support.small import WORDS


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """Nothing is looked for: the library keeps connections to a store until the process ends."""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


def persia(*words: str, while_running: Callable[[], None] = lambda: None, limit_s: int = 150) -> tuple[int, str]:
    """Run the command in a separate process, within some minutes; return its exit code and output."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-m", "persia_cli", *words]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        for _ in range(10 * limit_s):
            while_running()
            try:
                process.wait(0.1)
                break
            except subprocess.TimeoutExpired:
                continue
        else:
            process.kill()
            process.wait(30)
        said.seek(0)
        return process.returncode, said.read()


def train(
    run_dir: Path, uri: str, *words: str, while_running: Callable[[], None] = lambda: None, limit_s: int = 150
) -> tuple[int, str]:
    given = [*WORDS, "cluster=embedded", f"checkpoint.path={uri}", "--run-dir", str(run_dir), *words]
    return persia("train", *given, while_running=while_running, limit_s=limit_s)


def result_of(run_dir: Path) -> JobResult:
    return JobResult(run_dir, read_journal(run_dir / METRICS), read_journal(run_dir / EVENTS))


def steps_of(run_dir: Path, kind: str) -> list[int]:
    """Return the steps of the events of one kind so far, 0 where one has no step."""
    events = read_journal(run_dir / EVENTS) if (run_dir / EVENTS).exists() else []
    return [event.get("step", 0) for event in events if event["event"] == kind]


def port_of(network: Proxy) -> int:
    return int(network.address.rpartition(":")[2])


def assert_whole(checkpoints: Location) -> None:
    """Every checkpoint is whole to the bit, and nothing else is left."""
    steps = finished_steps(checkpoints)
    assert [folder.name for folder in subfolders(checkpoints)] == sorted(f"step-{step}" for step in steps)
    for folder in subfolders(checkpoints):
        manifest = read_manifest(folder)
        for file in manifest.files:
            verify(folder / file.folder / file.name, file)
        assert len(subfolders(folder)) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_is_saved_evaluated_and_resumed_in_a_store(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, run = store.uri("whole"), tmp_path / "run"
    code, said = train(run, uri, "train.steps=100", "checkpoint.every_steps=50")
    assert code == 0, said
    assert not (run / "checkpoints").exists()
    checkpoints, outputs = location_of(uri), [said]
    assert finished_steps(checkpoints) == [50, 100]
    copy_record(checkpoints, tmp_path / "copy")
    assert read_history(tmp_path / "copy").outcome(time.time()) == RunOutcome("done")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    def done(*words: str) -> str:
        code, output = persia(*words)
        assert code == 0, output
        outputs.append(output)
        return output

    scored = json.loads(done("eval", str(run), "--json", "cluster.embedding_servers=2").splitlines()[0])
    [trained] = [line for line in read_journal(run / METRICS) if line["split"] == "eval"]
    assert {key: scored[key] for key in ("step", "auc", "log_loss")} == {
        key: trained[key] for key in ("step", "auc", "log_loss")
    }
    half = done("eval", address_of(checkpoints / "step-50"), "--json")
    assert '"step": 50, ' in half
    done("resume", str(run), "train.steps=150", "cluster.embedding_servers=3")
    straight = tmp_path / "straight"
    done("train", *WORDS, "cluster=embedded", "train.steps=150", "--run-dir", str(straight))
    assert losses(result_of(run)) == losses(result_of(straight))
    assert_whole(checkpoints)
    manifests = [(folder / "manifest.json").read_bytes() for folder in subfolders(checkpoints)]
    files = [path.read_bytes() for path in run.rglob("*") if path.is_file()]
    for text in (*map(str.encode, outputs), *files, *manifests):
        assert SECRET.encode() not in text
        assert b"AKIDOFTEST" not in text


def test_one_broken_connection_is_tried_again(store: ObjectStore, tmp_path: Path) -> None:
    with Proxy(f"tcp://127.0.0.1:{store.port}") as network:
        uri, run_dir = store.uri("again", port_of(network)), tmp_path / "run"
        words = [
            *WORDS, "cluster=embedded", "train.steps=60", "checkpoint.every_steps=20", f"checkpoint.path={uri}",
        ]  # fmt: skip
        armed: list[int] = []

        def break_one() -> None:
            if not armed and steps_of(run_dir, "ready"):
                armed.append(20_000)
                network.cut_after(20_000)

        result = EmbeddedEngine().launch(plan(words, run_dir), break_one)
        assert network.cuts == 1
        assert [event["step"] for event in result.events if event["event"] == "saved"] == [20, 40, 60]
        assert not steps_of(run_dir, "save_failed")
        assert_whole(location_of(uri))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_store_that_keeps_requests_waiting_costs_saves_and_not_the_job(store: ObjectStore, tmp_path: Path) -> None:
    """Hold everything back, with open connections, until a save was aborted."""
    with Proxy(f"tcp://127.0.0.1:{store.port}") as network:
        uri, run_dir = store.uri("hangs", port_of(network)), tmp_path / "run"
        stalled: list[bool] = []

        def stall_a_save() -> None:
            saved, failed = (bool(steps_of(run_dir, kind)) for kind in ("saved", "save_failed"))
            if saved and not stalled:
                stalled.append(True)
                network.stall(requests=False, replies=True)
            if failed:
                network.resume()

        words = ["cluster=local", "cluster.silence_timeout_s=12", "train.steps=300", "checkpoint.every_steps=100"]
        code, said = train(run_dir, uri, *words, "checkpoint.keep=9", while_running=stall_a_save, limit_s=500)
        assert code == 0, said
        failed, saved = steps_of(run_dir, "save_failed"), steps_of(run_dir, "saved")
        assert failed
        assert saved[-1] == 300
        assert sorted([*failed, *saved]) == [100, 200, 300]
        assert_whole(location_of(uri))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_last_save_that_fails_is_an_error(store: ObjectStore, tmp_path: Path) -> None:
    with Proxy(f"tcp://127.0.0.1:{store.port}") as network:
        uri, run_dir = store.uri("last", port_of(network)), tmp_path / "run"

        def cut() -> None:
            if not network.cuts and (run_dir / METRICS).exists() and (run_dir / METRICS).stat().st_size:
                network.go_down()

        code, said = train(run_dir, uri, "train.steps=100", while_running=cut)
        assert code == 2, said
        assert "error: the model of step 100 was not saved: s3://models/last/step-100" in said
        # A request is tried again for as long as it may take, or refused for good before that.
        assert "it cannot be reached" in said or "has not answered within" in said
        assert SECRET not in said
