"""The benchmarks of whole jobs run from end to end and report their measurements."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.small import WORDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 540.0
"""Four jobs start one after another, each with half a dozen processes, on a machine that may be busy."""
SMALL = [*WORDS, "mode=hybrid", "cluster.embedding_servers=2", "train.log_every_steps=50"]
CASES: dict[str, tuple[list[str], list[str], set[str]]] = {
    "throughput": (
        ["throughput", *SMALL, "--compare", "torch,dense", "--quick"],
        ["ring", "loader"],
        {"persia", "torch", "dense"},
    ),
    "modes": (
        ["modes", *SMALL, "--delay-ms", "20", "--quick"],
        ["0 ms", "20 ms"],
        {"sync", "hybrid"},
    ),
    "hosts": (
        ["modes", *SMALL, "--hosts", "--delay-ms", "0", "--quick"],
        ["0 ms", "0 ms, 1000 Mbit/s", "0 ms, 100 Mbit/s"],
        {"sync", "hybrid", "async"},
    ),
}
"""The arguments of each benchmark, and the cases and sides that its result has."""


def bench(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `persia bench` with the small job; nothing it leaves in its folder for temporary files is tolerated."""
    return checked([sys.executable, "-m", "persia_cli", "bench", *words], folder)


def checked(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir() if path.name.startswith("persia-")] == []
    return done


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path, for Unix sockets lie in it."""
    return tmp_path_factory.mktemp("t")


@pytest.mark.parametrize("name", CASES)
def test_a_benchmark_measures_every_side_in_every_case(name: str, folder: Path) -> None:
    words, cases, sides = CASES[name]
    results: list[dict[str, Any]] = json.loads(bench(*words, "--json", folder=folder).stdout)["results"]
    assert [result["case"] for result in results] == cases or not cases
    for result in results:
        found = {side["name"]: side["median"] for side in result["sides"]}
        assert found.keys() >= sides
        assert min(found.values()) > 0
        for side in result["sides"]:
            for other, ratio in side["ratios"].items():
                assert other not in found or ratio == pytest.approx(side["median"] / found[other])
    if name == "modes":
        # A step of sync cannot be faster than an update's way to the servers and the next rows' way back.
        delayed = {side["name"]: side["median"] for side in results[1]["sides"]}
        assert 32 / delayed["sync"] > 0.08
        assert delayed["hybrid"] > delayed["sync"]


@pytest.mark.parametrize(
    ("words", "sides"),
    [
        (
            ["scaling", *SMALL[:-2]],
            [{"2 embedding-servers"}, {"2 embedding-workers"}, {"2 data-loaders"}, {"2 nn-workers"}],
        ),
        (["tier", *SMALL, "embedding.wire=float16"], [{"persia"}]),
    ],
    ids=["scaling", "tier"],
)
def test_comparisons_of_jobs_measure_every_side(words: list[str], sides: list[set[str]], folder: Path) -> None:
    done = checked([sys.executable, "-m", "scripts.measure", *words, "--quick", "--json"], folder)
    results = json.loads(done.stdout)["results"]
    for result, expected in zip(results, sides, strict=True):
        speeds = {side["name"]: side["median"] for side in result["sides"]}
        assert speeds.keys() >= expected
        assert min(speeds.values()) > 0


def test_throughput_for_people(folder: Path) -> None:
    done = bench("throughput", *SMALL, "--compare", "dense", "--source", "ring", "--quick", folder=folder)
    lines = done.stdout.splitlines()
    [head] = [number for number, line in enumerate(lines) if line.startswith("who ")]
    assert [line.split()[0] for line in lines[head + 1 : head + 3]] == ["persia", "dense"]
    assert any(line.startswith("limit") and "bottleneck" in line for line in lines)


@pytest.mark.processes
def test_models_of_all_sizes_share_the_memory_and_their_speed_accuracy_and_evictions_are_measured(folder: Path) -> None:
    words = [word for word in SMALL if not word.startswith("embedding.capacity")]
    options = ["--sizes", "200,10K,100T", "--quick", "--json"]
    small = ["embedding.memory=64KiB", "embedding.num_partitions=2", "dataset.generator.signal=3"]
    done = bench("capacity", *words, *small, *options, folder=folder)
    [result] = json.loads(done.stdout)["results"]
    assert [size["parameters"] for size in result["sizes"]] == [200, 10_000, 10**14]
    first, middle, last = result["sizes"]
    assert first["ids"] < result["capacity"] < middle["ids"] < last["ids"]
    assert (first["evicted"], first["ratio"], middle["ratio"]) == (0, None, 1.0)
    assert first["look_up_hit_rate"] > middle["look_up_hit_rate"] > last["look_up_hit_rate"]
    for size in result["sizes"]:
        assert 0 < size["rows"] <= min(size["ids"], result["capacity"])
        assert size["side"]["median"] > 0
        assert size["memory"] > 0
        assert 0.5 < size["best_auc"] <= 1.0
        assert 0.0 < size["side"]["auc"] <= 1.0
