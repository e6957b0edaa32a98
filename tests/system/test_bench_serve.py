"""`persia bench serve` starts a server, loads it from a third process, and leaves none of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.small_model import NAME, write_small_model

LIMIT_S = 170.0
CLOSED = ("4 connections, 20 candidates", "4 connections, 1 candidate")


def bench(*words: str | Path, temporary: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "persia_cli", "bench", "serve", *words], capture_output=True, text=True,
        timeout=LIMIT_S, env=os.environ | {"TMPDIR": str(temporary)},
    )  # fmt: skip
    assert [path.name for path in temporary.iterdir() if path.name.startswith("persia-")] == []
    left = [each for each in psutil.process_iter(["cmdline"]) if str(temporary) in " ".join(each.info["cmdline"] or [])]
    assert left == []
    return done


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / NAME)


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "t"
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_a_server_against_its_network_alone(model: Path, temporary: Path) -> None:
    done = bench(model, "--candidates", "20", "--user", "user", "--quick", "--json", temporary=temporary)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = json.loads(done.stdout)
    *closed, below, above = told["results"]
    assert tuple(each["name"] for each in closed) == CLOSED
    for each in closed:
        ours, alone = each["sides"]
        assert ours["ratios"] == {alone["name"]: pytest.approx(ours["median"] / alone["median"])}
        assert 0 < ours["latency_ms"]["p50"] <= ours["latency_ms"]["p99"]
    assert all(each["sides"][0]["errors"] == 0 for each in told["results"])
    assert 0 < below["sides"][0]["offered_per_s"] < above["sides"][0]["offered_per_s"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--rate", "0.1", "--seconds", "1"], "--rate 0.1 for --seconds 1 are 0.1 requests"),
        (["--user", "age", "--quick"], "the model has no field age"),
    ],
)
def test_a_mistake_is_named(model: Path, temporary: Path, words: list[str], named: str) -> None:
    done = bench(model, *words, temporary=temporary)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
