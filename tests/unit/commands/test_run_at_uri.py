"""Run directories at URIs, as commands take them."""

import subprocess
import sys
from pathlib import Path

import pytest

from persia_cli.jobs.run_dirs import uri_of
from persia_cli.store.checkpoints.manifest import finished_steps
from tests.support.small import WORDS


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("s3://bucket/shop", "s3://bucket/shop"),
        ("s3:/bucket/shop", "s3://bucket/shop"),
        ("file:/data/shop", "file:///data/shop"),
        ("hdfs://name:8020/shop", "hdfs://name:8020/shop"),
        ("runs/shop", None),
        (None, None),
    ],
)
def test_a_uri_keeps_its_slashes(given: str | None, meant: str | None) -> None:
    assert uri_of(given) == meant


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
