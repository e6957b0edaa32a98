"""`persia bench throughput` prints what was measured."""

import json
import subprocess
import sys

import pytest

from persia_cli.bench.throughput import RoleCost, Throughput
from persia_cli.config.schema import Run


def test_json(persia, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(run: Run, steps: int) -> Throughput:
        roles = [RoleCost("nn-worker-0", 1.25, 2**20), RoleCost("coordinator-0", 0.5, 2**30)]
        return Throughput("base", run.mode.kind, steps, 5000, 2.5, 2000.0, stand_in=None, roles=roles)

    monkeypatch.setattr("persia_cli.bench.throughput.measure", measure)
    ended = persia("bench", "throughput", "dataset=tiny", "mode=sync", "--steps", "50", "--json")
    assert (ended.code, ended.err) == (0, "")
    told = json.loads(ended.out)
    assert (told["mode"], told["steps"], told["samples_per_s"]) == ("sync", 50, 2000.0)
    assert told["roles"][0] == {"replica": "nn-worker-0", "cpu_s": 1.25, "rss": 2**20}


@pytest.mark.slow
def test_kernels_as_json() -> None:
    command = [sys.executable, "-m", "scripts.bench", "kernels", "--quick", "--only", "dedup", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    told = json.loads(ended.stdout)
    assert (told["benchmark"], told["quick"]) == ("kernels", True)
    assert {"cpu", "cores", "memory", "huge_pages", "libraries"} <= told["machine"].keys()
    result = told["results"][0]
    ours, theirs = result["sides"]
    assert (result["case"], ours["name"], theirs["name"]) == ("dedup", "persia", "np.unique")
    assert ours["ratios"] == {"np.unique": pytest.approx(ours["median"] / theirs["median"])}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--hosts", "--mbit", "100"], "--mbit=100: --hosts measures with its own bandwidths"),
        (["--plot", "modes.pdf"], "--plot=modes.pdf: end the name of the picture in .png or .svg"),
        (["--plot", "away/modes.png"], "create it first"),
    ],
)
def test_modes_that_cannot_be_measured_like_this(persia, words: list[str], sentence: str) -> None:
    ended = persia("bench", "modes", "dataset=tiny", *words)
    assert ended.code == 2
    assert sentence in ended.err
