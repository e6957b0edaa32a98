"""A run with its checkpoints in an object store: saved, evaluated and resumed there, whatever the network does."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from persia_cli.engines import embedded
from persia_cli.engines.job import JobResult
from persia_cli.observe.history import RunOutcome, read_history
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.observe.record_state import copies_in
from persia_cli.observe.remote_records import copy_record, newest_record
from persia_cli.storage.credentials import VARIABLE
from persia_cli.storage.places import Place, address_of, place_of, subfolders
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


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_run_directory_at_a_uri_has_checkpoints_with_the_record_there_and_the_rest_here(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    uri = store.uri("directory")
    code, said = persia("train", *WORDS, "cluster=embedded", "train.steps=20", "--run-dir", uri)
    assert code == 0, said
    [here] = (tmp_path / "runs").iterdir()
    there = place_of(uri)
    assert finished_steps(there) == [20]
    copies = {
        file.name: there / "step-20" / file.folder / file.name for file in copies_in(read_manifest(there / "step-20"))
    }
    for name in ("config.yaml", METRICS, EVENTS):
        assert copies[name].read_bytes() == (here / name).read_bytes()
        assert SECRET.encode() not in (here / name).read_bytes()
    assert SECRET not in said
    for words, refused in (
        ([f"resume={here}"], "is for a new run, or with resume=auto for the one that is there"),
        (["checkpoint.path=elsewhere"], "has the checkpoints too; leave out checkpoint.path=elsewhere"),
    ):
        code, said = persia("train", *WORDS, *words, "--run-dir", uri)
        assert (code, refused in said, SECRET in said) == (2, True, False), said
    assert list((tmp_path / "runs").iterdir()) == [here]


def port_of(network: Proxy) -> int:
    return int(network.address.rpartition(":")[2])


def assert_whole(checkpoints: Place) -> None:
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
def test_a_run_is_saved_evaluated_and_resumed_in_a_store(store: ObjectStore, tmp_path: Path) -> None:
    uri = store.uri("whole")
    code, said = train(tmp_path / "run", uri, "train.steps=100", "checkpoint.every_steps=50")
    assert code == 0, said
    assert not (tmp_path / "run" / "checkpoints").exists()
    checkpoints = place_of(uri)
    for name, copied in newest_record(checkpoints).items():
        assert copied == (tmp_path / "run" / name).read_bytes()
        assert SECRET.encode() not in copied
    copy_record(checkpoints, tmp_path / "copy")
    history = read_history(tmp_path / "copy")
    assert history.outcome(time.time()) == RunOutcome("done")
    assert finished_steps(checkpoints) == [50, 100]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ACCESS_KEY_ID", "AKIDOFTEST")
        patched.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        code, on_two = persia("eval", str(tmp_path / "run"), "cluster.embedding_servers=2")
        assert code == 0, on_two
        figures = [line for line in said.splitlines() if line.startswith("step=100 ")]
        assert [line.partition(" samples_per_s")[0] for line in figures] == [
            line.partition(" samples_per_s")[0] for line in on_two.splitlines() if line.startswith("step=100 ")
        ]
        code, by_uri = persia("eval", address_of(checkpoints / "step-50"), "cluster.embedding_servers=2")
        assert code == 0, by_uri
        assert "step=50 " in by_uri
        code, tables = persia("table", "stats", address_of(checkpoints / "step-100"))
        assert code == 0, tables
        words = [*WORDS, "cluster=embedded", "train.steps=150", f"resume={address_of(checkpoints / 'step-100')}"]
        code, other = persia("train", *words, "--run-dir", str(tmp_path / "other"))
        assert code == 0, other
        code, resumed = persia("resume", str(tmp_path / "run"), "train.steps=150", "cluster.embedding_servers=3")
        assert code == 0, resumed
    straight = tmp_path / "straight"
    code, on_disk = persia("train", *WORDS, "cluster=embedded", "train.steps=150", "--run-dir", str(straight))
    assert code == 0, on_disk
    assert losses(result_of(tmp_path / "run")) == losses(result_of(straight))
    assert losses(result_of(tmp_path / "other")) == losses(result_of(straight))
    assert_whole(checkpoints)
    # No file has the secret.
    kept = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert kept
    for text in (
        said.encode(),
        on_two.encode(),
        by_uri.encode(),
        tables.encode(),
        other.encode(),
        resumed.encode(),
        *kept,
    ):
        assert SECRET.encode() not in text
        assert b"AKIDOFTEST" not in text
    for folder in subfolders(checkpoints):
        assert SECRET.encode() not in (folder / "manifest.json").read_bytes()


@pytest.mark.slow  # pyarrow takes about 20 s to give up a store that refuses connections.
@pytest.mark.timeout(600)
def test_a_save_that_the_network_breaks_costs_that_save_alone(store: ObjectStore, tmp_path: Path) -> None:
    """One save of several is aborted; those after it work, the first with all rows and the next with changes."""
    with Proxy(f"tcp://127.0.0.1:{store.port}") as network:
        uri, run_dir = store.uri("broken", port_of(network)), tmp_path / "run"

        def cut_a_save() -> None:
            saved, failed = (bool(steps_of(run_dir, kind)) for kind in ("saved", "save_failed"))
            if saved and not failed and not network.cuts:
                network.go_down()
            if failed:
                network.come_up()

        words = ("train.steps=300", "checkpoint.every_steps=20")
        code, said = train(run_dir, uri, *words, "checkpoint.full_every=4", while_running=cut_a_save)
        assert code == 0, said
        failed, saved = steps_of(run_dir, "save_failed"), steps_of(run_dir, "saved")
        assert failed
        assert network.cuts
        assert saved[-1] == 300
        assert sorted({*failed, *saved}) == list(range(20, 301, 20))
        assert "not saved" in said
        assert SECRET not in said
        parents = {event["step"]: event["parent"] for event in result_of(run_dir).events if event["event"] == "saved"}
        assert all(parents[step + 20] is None for step in failed if step + 20 in parents)
        assert any(parents.values())
        assert_whole(place_of(uri))


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

        result = embedded.launch(plan(words, run_dir), break_one)
        assert network.cuts == 1
        assert [event["step"] for event in result.events if event["event"] == "saved"] == [20, 40, 60]
        assert not steps_of(run_dir, "save_failed")
        assert_whole(place_of(uri))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("asked", ["requests", "replies"])
def test_a_store_that_keeps_requests_waiting_costs_saves_and_not_the_job(
    store: ObjectStore, tmp_path: Path, asked: str
) -> None:
    """Hold everything back, with open connections, until a save was aborted."""
    with Proxy(f"tcp://127.0.0.1:{store.port}") as network:
        uri, run_dir = store.uri(f"hangs-{asked}", port_of(network)), tmp_path / "run"
        stalled: list[bool] = []

        def stall_a_save() -> None:
            saved, failed = (bool(steps_of(run_dir, kind)) for kind in ("saved", "save_failed"))
            if saved and not stalled:
                stalled.append(True)
                network.stall(requests=asked == "requests", replies=asked == "replies")
            if failed:
                network.resume()

        words = ["cluster=local", "cluster.silence_timeout_s=12", "train.steps=300", "checkpoint.every_steps=100"]
        code, said = train(run_dir, uri, *words, "checkpoint.keep=9", while_running=stall_a_save, limit_s=500)
        assert code == 0, said
        failed, saved = steps_of(run_dir, "save_failed"), steps_of(run_dir, "saved")
        assert failed
        assert saved[-1] == 300
        assert sorted([*failed, *saved]) == [100, 200, 300]
        assert_whole(place_of(uri))


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
