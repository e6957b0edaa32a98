"""The benchmarks of whole jobs run from end to end and report their measurements."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from persia_cli.bench.baselines.steps import has_fbgemm
from persia_cli.bench.turns import TurnJob
from persia_cli.config.compose import compose_run
from persia_cli.data.read.facts import inspect
from persia_cli.errors import PersiaError
from tests.support.printed import key_values
from tests.support.small import WORDS

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
LIMIT_S = 540.0
"""Four jobs start one after another, each with half a dozen processes, on a machine that may be busy."""
SMALL = [*WORDS, "mode=hybrid", "cluster.embedding_servers=2", "train.log_every_steps=50"]


def bench(*words: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    """Run `persia bench` with the small job; nothing it leaves in its folder for temporary files is tolerated."""
    done = subprocess.run(
        [sys.executable, "-m", "persia_cli", "bench", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in temporary.iterdir() if path.name.startswith("persia-")] == []
    return done


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path, for Unix sockets lie in it."""
    return tmp_path_factory.mktemp("t")


@pytest.mark.slow
def test_throughput_takes_turns_with_baselines_on_both_sources(temporary: Path) -> None:
    words = [*SMALL, "optimizer=adagrad", "--compare", "torch,dense", "--quick", "--json"]
    done = bench("throughput", *words, temporary=temporary)
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert [each["case"] for each in told["results"]] == ["ring", "loader"]
    assert told["run"]["optimizer"]["embedding"]["kind"] == "adagrad"
    for each in told["results"]:
        _check_comparison(each)


@pytest.mark.slow
def test_throughput_takes_turns_with_the_same_job_in_private_memory(temporary: Path) -> None:
    words = [*SMALL, "--compare", "private", "--source", "ring", "--quick", "--json"]
    done = bench("throughput", *words, temporary=temporary)
    assert done.stderr == ""
    [result] = json.loads(done.stdout)["results"]
    sides = {side["name"]: side for side in result["sides"]}
    assert list(sides) == ["persia", "private"]
    assert sides["persia"]["ratios"] == {
        "private": pytest.approx(sides["persia"]["median"] / sides["private"]["median"])
    }
    assert result["stages"], "the job itself was traced"


def _check_comparison(each: dict[str, Any]) -> None:
    sides = {side["name"]: side for side in each["sides"]}
    assert list(sides) == ["persia", "torch", "dense"]
    assert all(side["median"] > 0 for side in sides.values())
    assert sides["persia"]["ratios"] == {
        baseline: pytest.approx(sides["persia"]["median"] / sides[baseline]["median"])
        for baseline in ("torch", "dense")
    }
    roles = {name.rpartition("-")[0] for name in sides["persia"]["cpu_ms"]}
    assert roles == {"coordinator", "data-loader", "embedding-worker", "embedding-server", "nn-worker"}
    assert ("reader" in sides["torch"]["cpu_ms"]) == (each["case"] == "loader")
    stages = {(stage["replica"], stage["stage"]) for stage in each["stages"]}
    expected = {"wait for batch", "decode rows", "forward", "backward", "encode gradients", "dense step"}
    assert {("nn-worker-0", name) for name in expected} <= stages
    assert {
        ("embedding-worker-0", "plan"),
        ("embedding-server-1", "look-up"),
        ("embedding-server-1", "update"),
    } <= stages
    assert all(stage["ms"] >= 0 for stage in each["stages"])
    assert each["bottleneck"].endswith(".")


@pytest.mark.slow
def test_throughput_for_people(temporary: Path) -> None:
    words = [*SMALL, "--compare", "dense", "--source", "ring", "--quick"]
    done = bench("throughput", *words, temporary=temporary)
    lines = done.stdout.splitlines()
    sides = [key_values(line) for line in lines if line.startswith("who=")]
    assert [side["who"] for side in sides] == ["persia", "dense"]
    assert all(float(side["samples_s"]) > 0 for side in sides)
    assert any(line.startswith("limit") and "bottleneck" in line for line in lines)
    assert done.stderr.splitlines()[-1] == "next      persia bench modes --delay-ms 5"


@pytest.mark.slow
def test_modes_with_and_without_delay(temporary: Path) -> None:
    done = bench("modes", *SMALL, "--delay-ms", "20", "--quick", "--json", temporary=temporary)
    told = json.loads(done.stdout)
    figures = {(each["case"], side["name"]): side for each in told["results"] for side in each["sides"]}
    assert {("0 ms", "sync"), ("20 ms", "sync"), ("0 ms", "hybrid"), ("20 ms", "hybrid")} <= figures.keys()
    # A step of sync cannot be faster than an update's way to the servers and the next rows' way back.
    assert 32 / figures["20 ms", "sync"]["median"] > 0.08
    assert figures["20 ms", "hybrid"]["ratios"]["sync"] > 1.0
    undelayed = figures["20 ms", "hybrid"]["median"] / figures["0 ms", "hybrid"]["median"]
    assert figures["20 ms", "hybrid"]["ratios"]["itself without delay"] == pytest.approx(undelayed)
    assert figures["0 ms", "sync"]["auc"] == figures["20 ms", "sync"]["auc"]


@pytest.mark.slow
def test_modes_between_hosts_and_their_picture(temporary: Path) -> None:
    picture = temporary / "links.svg"
    words = [*SMALL, "--hosts", "--delay-ms", "0", "--plot", str(picture), "--quick", "--json"]
    done = bench("modes", *words, temporary=temporary)
    told = json.loads(done.stdout)
    cases = [each["case"] for each in told["results"]]
    assert cases == ["0 ms", "0 ms, 1000 Mbit/s", "0 ms, 100 Mbit/s"]
    assert all([side["name"] for side in each["sides"]] == ["sync", "hybrid", "async"] for each in told["results"])
    assert "100 Mbit/s" in picture.read_text()


@pytest.mark.slow
def test_saving_during_training(temporary: Path) -> None:
    """Lines are so short that also the save of a small table lasts for some of them."""
    told = json.loads(bench("saving", *SMALL, "--steps", "200", "--saves", "2", "--json", temporary=temporary).stdout)
    (result,) = told["results"]
    ours, alone = result["sides"]
    assert (ours["name"], alone["name"], result["rounds"], result["steps"]) == ("persia", "no save", 2, 200)
    assert ours["ratios"] == {"no save": pytest.approx(ours["median"] / alone["median"])}
    assert " MB takes " in result["note"]


@pytest.mark.slow
def test_tier_against_fbgemm_where_it_is_installed(temporary: Path) -> None:
    words = [*SMALL, "optimizer=rowwise_adagrad", "embedding.wire=float16", "--quick", "--json"]
    told = json.loads(bench("tier", *words, temporary=temporary).stdout)
    (result,) = told["results"]
    ours, *theirs = result["sides"]
    assert (ours["name"], result["unit"]) == ("persia", "ids/s")
    assert ours["median"] > 0
    assert ours["ratios"] == {side["name"]: pytest.approx(ours["median"] / side["median"]) for side in theirs}
    assert bool(theirs) == has_fbgemm()
    assert "nn-worker-0" not in ours["cpu_ms"]
    assert {"embedding-worker-0", "embedding-server-0", "embedding-server-1", "client"} <= ours["cpu_ms"].keys()


@pytest.mark.slow
def test_an_alternating_job_measures_its_turns_and_reports_its_error(temporary: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    run = compose_run(SMALL)
    with TurnJob(run, inspect(run.dataset), steps=8, turns=2, ring=4) as job:
        figures = job.turn()
        assert figures.samples == 8 * 32
        assert figures.seconds > 0
        assert figures.cpu_s.keys() == job.pids.keys()
        assert len(job.pids) == 6
        os.kill(job.pids["embedding-server-1"], signal.SIGKILL)
        with pytest.raises(PersiaError, match="embedding-server-1"):
            job.turn()
