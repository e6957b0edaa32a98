"""Targets are held against the runs that they are set for, and no others."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from persia_cli.bench.result import Result, Side
from persia_cli.config.compose import compose_run
from persia_cli.observe.processor import Processor
from scripts import targets
from scripts.bench.alternate import single

TURIN = Processor("EPYC", ("avx2", "avx512f", "avx512_bf16"))
TARGET = ["conf=criteo", "train.batch_size=4096", "optimizer=adagrad", "cluster.embedding_servers=2"]


@pytest.mark.parametrize(
    ("words", "dense", "torch"),
    [([], 0.95, 1.03), (["train.threads=2"], 0.85, 1.03), (["train.batch_size=512"], None, None)],
)
def test_targets_hold_for_the_run_they_are_set_for(words: list[str], dense: float | None, torch: float | None) -> None:
    run = compose_run([*TARGET, *words])
    assert tuple(targets.throughput_target(run, baseline, TURIN) for baseline in ("dense", "torch")) == (dense, torch)


def told(benchmark: str, results: list[Result], words: list[str] | None = None, quick: bool = False) -> dict[str, Any]:
    """The JSON object of a benchmark."""
    machine = {"cpu": TURIN.model, "features": TURIN.features}
    head = {"benchmark": benchmark, "quick": quick, "machine": machine}
    run = {} if words is None else {"run": compose_run(words).model_dump(mode="json")}
    return json.loads(json.dumps(head | run | {"results": [asdict(result) for result in results]}))


def side(ratios: dict[str, float]) -> Side:
    return Side("persia", 1e6, 1e6, 1e6, ratios)


def judged(*args: Any) -> list[tuple[float, float, bool]]:
    return [(each.figure, each.target, each.met) for each in targets.judge(told(*args))]


def test_a_job_against_its_baselines() -> None:
    result = Result("ring", "criteo", "samples/s", [side({"torch": 1.1, "dense": 0.9})])
    assert judged("throughput", [result], TARGET) == [(1.1, 1.03, True), (0.9, 0.95, False)]
    # Targets are set for networks on the CPU.
    on_gpu = replace(result, sides=[replace(result.sides[0], gpu_busy=0.5)])
    assert judged("throughput", [on_gpu], TARGET) == []


@pytest.mark.parametrize(
    ("name", "ratios", "expected"),
    [
        (
            "look-up, dim 16, 10M rows, uniform",
            {"torch.index_select": 1.0, "gather limit": 0.3},
            [(1.0, 0.95, True), (0.3, 0.33, False)],
        ),
        ("look-up, dim 16, 1M rows, uniform", {"torch.index_select": 1.0, "gather limit": 0.3}, []),
        ("update Adagrad, dim 64, 2M rows, uniform, rows kept", {"read-modify-write limit": 0.7}, [(0.7, 0.8, False)]),
        ("hash look-up, load 0.65, Zipf", {"naive linear probing": 1.0, "Python dict": 20.0}, [(20.0, 30.0, False)]),
        ("dedup of keys", {"np.unique": 2.8}, [(2.8, 2.8, True)]),
        ("store at capacity, Zipf, dim 16, longest look-up", {"median": 4.0}, [(4.0, 5.0, True)]),
        ("memory at capacity, 10M rows, dim 16, Adagrad, the store", {"its values": 1.3}, [(1.3, 1.25, False)]),
    ],
)  # fmt: skip
def test_parts_of_the_store(name: str, ratios: dict[str, float], expected: list[tuple[float, float, bool]]) -> None:
    result = Result("case", name, "Mrows/s", [side(ratios)])
    assert judged("kernels", [result]) == expected


def test_the_script_judges_what_comes_from_stdin(tmp_path: Path) -> None:
    script = [sys.executable, str(Path(targets.__file__))]
    bad = json.dumps(told("kernels", [single("dedup of keys", "Mids/s", {"persia": 1.0, "np.unique": 1.0})]))
    done = subprocess.run(script, input=bad, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "0 of 1 targets met")
