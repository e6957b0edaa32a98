"""`persia bench throughput` prints what was measured."""

import json

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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--hosts", "--mbit", "100"], "--mbit=100: --hosts measures with its own bandwidths"),
    ],
)
def test_modes_that_cannot_be_measured_like_this(persia, words: list[str], sentence: str) -> None:
    ended = persia("bench", "modes", "dataset=tiny", *words)
    assert ended.code == 2
    assert sentence in ended.err


CRITEO = ("conf=criteo", "embedding.memory=100MiB")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["capacity", *CRITEO, "--sizes", "10M,big"], "'big'"),
        (["capacity", *CRITEO, "--sizes", "2000T"], "'2000T'"),
        (["capacity", *CRITEO, "--sizes", "10K,1B"], "625 ids"),
        (["capacity", *CRITEO, "--sizes", "1M"], "embedding.memory"),
        (["capacity", "conf=criteo", "embedding.capacity=1000"], "embedding.capacity"),
        (["capacity", "conf=adult_income"], "dataset.generator"),
        (["capacity", *CRITEO, "cluster=embedded"], "cluster=local"),
    ],
)
def test_sizes_that_cannot_be_measured(persia, words: list[str], named: str) -> None:
    ended = persia("bench", *words)
    assert (ended.code, ended.out) == (2, "")
    assert named in ended.err
