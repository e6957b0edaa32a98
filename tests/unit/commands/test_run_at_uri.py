"""Run directories at URIs, as commands take them."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from persia_cli.commands import submit
from persia_cli.commands.run_at_uri import uri_of
from persia_cli.config.compose import compose_run
from persia_cli.config.record import write_run
from persia_cli.config.schema import Run
from persia_cli.observe.history import CONFIG
from persia_cli.observe.remote_records import owner_here
from persia_cli.storage.places import place_of
from persia_cli.store.checkpoints.claim import claim
from persia_cli.store.checkpoints.manifest import finished_steps
from tests.support.small import WORDS


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("s3://bucket/shop", "s3://bucket/shop"),
        ("s3:/bucket/shop", "s3://bucket/shop"),
        ("file:///data/shop", "file:///data/shop"),
        ("file:/data/shop", "file:///data/shop"),
        ("hdfs:///user/me/shop", "hdfs:///user/me/shop"),
        ("hdfs://name:8020/shop", "hdfs://name:8020/shop"),
        ("runs/shop", None),
        (None, None),
    ],
)
def test_a_uri_keeps_its_slashes(given: str | None, meant: str | None) -> None:
    assert uri_of(given) == meant


def test_the_command_of_a_run_on_hosts_has_a_separate_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    uri = f"file://{tmp_path}/saved"
    run = compose_run(["cluster=hosts", "cluster.hosts=[here]", "name=shop", f"checkpoint.path={uri}"])
    coordinators = tmp_path / "persia-jobs/shop-123456/run"
    coordinators.mkdir(parents=True)
    write_run(run, coordinators / CONFIG)
    claim(uri, coordinators, socket.gethostname())
    assert owner_here(place_of(uri)) == coordinators
    folders: list[Path] = []

    def begin(run: Run, run_dir: Path, words: list[str]) -> None:
        assert list(run_dir.iterdir()) == []
        folders.append(run_dir)

    monkeypatch.setattr(submit, "_submit_and_follow", begin)
    submit.resume_at_uri(run, uri)
    assert [folder.parent for folder in folders] == [Path("runs")]
    assert not folders[0].exists(), "nothing has begun"


@pytest.mark.processes
def test_a_run_is_put_at_a_uri_with_three_slashes_and_goes_on_from_there(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/saved"
    trained = persia(tmp_path, "train", *WORDS, "cluster=embedded", "train.steps=3", "--run-dir", uri)
    assert trained.returncode == 0, trained.stderr
    resumed = persia(tmp_path, "resume", uri, "train.steps=5")
    assert resumed.returncode == 0, resumed.stderr
    assert finished_steps(tmp_path / "saved")[-1] == 5


def persia(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "persia_cli", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
