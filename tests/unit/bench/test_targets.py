"""Targets are held against the runs that they are set for, and no others."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from persia_cli.bench.modes import UNDELAYED
from persia_cli.bench.result import Result, Side
from persia_cli.config.compose import compose_run
from persia_cli.observe.processor import Processor
from scripts import targets
from scripts.bench.alternate import single

TURIN = Processor("EPYC", ("avx2", "avx512f", "avx512_bf16"))
TARGET = ["conf=criteo", "train.batch_size=4096", "optimizer=adagrad", "cluster.embedding_servers=2"]
TIER = ["conf=criteo", "optimizer=rowwise_adagrad", "embedding.wire=float16", "cluster.embedding_servers=2"]
MODES = ["conf=criteo", "mode=hybrid", "mode.staleness=8", "train.batch_size=512"]


@pytest.mark.parametrize(
    ("words", "dense", "torch"),
    [
        ([], 0.95, 1.03),
        (["train.threads=2"], 0.85, 1.03),
        (["train.batch_size=512"], None, None),
        (["mode=sync"], None, None),
        (["model.dim=32"], None, None),
    ],
)
def test_targets_hold_for_the_run_they_are_set_for(words: list[str], dense: float | None, torch: float | None) -> None:
    run = compose_run([*TARGET, *words])
    assert tuple(targets.throughput_target(run, baseline, TURIN) for baseline in ("dense", "torch")) == (dense, torch)


def test_no_target_is_missed_for_a_precision_that_the_processor_is_slow_at() -> None:
    run = compose_run([*TARGET, "train.precision=bfloat16"])
    cascade_lake = Processor("Xeon", ("avx2", "avx512f", "avx512_vnni"))
    assert [targets.throughput_target(run, "dense", each) for each in (TURIN, cascade_lake)] == [0.9, None]


def told(benchmark: str, results: list[Result], words: list[str] | None = None, quick: bool = False) -> dict[str, Any]:
    """The JSON object of a benchmark."""
    machine = {"cpu": TURIN.model, "features": TURIN.features}
    head = {"benchmark": benchmark, "quick": quick, "machine": machine}
    run = {} if words is None else {"run": compose_run(words).model_dump(mode="json")}
    return json.loads(json.dumps(head | run | {"results": [asdict(result) for result in results]}))


def side(ratios: dict[str, float], name: str = "persia", speed: float = 1e6) -> Side:
    return Side(name, speed, speed, speed, ratios)


def judged(*args: Any) -> list[tuple[float, float, bool]]:
    return [(each.figure, each.target, each.met) for each in targets.judge(told(*args))]


def test_a_job_against_its_baselines() -> None:
    result = Result("ring", "criteo", "samples/s", [side({"torch": 1.1, "dense": 0.9})])
    assert judged("throughput", [result], TARGET) == [(1.1, 1.03, True), (0.9, 0.95, False)]
    # Targets are set for networks on the CPU.
    on_gpu = replace(result, sides=[replace(result.sides[0], gpu_busy=0.5)])
    assert judged("throughput", [on_gpu], TARGET) == []


def test_the_tier() -> None:
    result = Result("tier", "criteo", "ids/s", [side({"fbgemm, 1 thread": 1.4, "fbgemm, 2 threads": 1.1})])
    assert judged("tier", [result], TIER) == [(1.1, 1.2, False)]
    assert judged("tier", [result], [*TIER, "embedding.wire=float32"]) == []
    assert judged("tier", [replace(result, sides=[side({})])], TIER) == []


def test_modes_under_delay() -> None:
    delayed = side({UNDELAYED: 0.95, "sync": 2.5}, "hybrid")
    results = [
        Result(case, "criteo", "samples/s", sides)
        for case, sides in (("0 ms", [side({UNDELAYED: 1.0}, "hybrid")]), ("5 ms", [delayed]))
    ]
    assert judged("modes", results, MODES) == [(0.95, 0.9, True), (2.5, 3.0, False)]
    assert judged("modes", results, [*MODES, "mode.staleness=4"]) == []
    slow = replace(results[0], sides=[side({UNDELAYED: 1.0}, "hybrid", speed=1e4)])
    assert judged("modes", [slow, results[1]], MODES) == []


def test_modes_between_hosts() -> None:
    here = Result("0 ms", "criteo", "samples/s", [side({UNDELAYED: 1.0}, "hybrid")])
    far = Result("5 ms, 1000 Mbit/s", "criteo", "samples/s", [side({UNDELAYED: 0.5, "sync": 3.4}, "hybrid")])
    words = [*MODES, "train.batch_size=256"]
    assert judged("modes", [here, far], words) == [(3.4, 3.0, True)]
    assert judged("modes", [here, replace(far, case="5 ms, 100 Mbit/s")], words) == []
    assert judged("modes", [here, far], MODES) == []


@pytest.mark.parametrize(
    ("name", "ratios", "expected"),
    [
        (
            "look-up, dim 16, 10M rows, uniform",
            {"torch.index_select": 1.0, "gather limit": 0.3},
            [(1.0, 0.95, True), (0.3, 0.33, False)],
        ),
        ("look-up, dim 16, 1M rows, uniform", {"torch.index_select": 1.0, "gather limit": 0.3}, []),
        ("look-up, dim 16, 10M rows, Zipf", {"torch.index_select": 1.0, "gather limit": 0.3}, []),
        ("update Adagrad, dim 64, 2M rows, uniform, from keys", {"read-modify-write limit": 0.7}, [(0.7, 0.65, True)]),
        ("update Adagrad, dim 64, 2M rows, uniform, rows kept", {"read-modify-write limit": 0.7}, [(0.7, 0.8, False)]),
        ("update Adagrad, dim 64, 2M rows, uniform", {"torch.optim.Adagrad": 12.0}, [(12.0, 10.0, True)]),
        ("hash look-up, load 0.65, Zipf", {"naive linear probing": 1.0, "Python dict": 20.0}, [(20.0, 30.0, False)]),
        ("dedup of keys", {"np.unique": 2.8}, [(2.8, 2.8, True)]),
        ("pooling backward, dim 16, 1 ids a bag", {"embedding_bag": 9.0, "index_add_": 2.0},
         [(9.0, 8.0, True), (2.0, 3.0, False)]),
        ("embedding step, 26 tables, 33.8M rows, dim 16, Zipf, row-wise Adagrad", {"FBGEMM row-wise Adagrad": 1.2},
         [(1.2, 1.1, True)]),
        ("embedding step, 26 tables, 33.8M rows, dim 16, Zipf, Adagrad", {"FBGEMM Adagrad on huge pages": 1.2}, []),
        ("store at capacity, Zipf, dim 16, longest look-up", {"median": 4.0}, [(4.0, 5.0, True)]),
        ("memory at capacity, 10M rows, dim 16, Adagrad, the store", {"its values": 1.3}, [(1.3, 1.25, False)]),
        ("memory at capacity, 10M rows, dim 16, Adagrad, the process", {"its values": 1.3}, []),
    ],
)  # fmt: skip
def test_parts_of_the_store(name: str, ratios: dict[str, float], expected: list[tuple[float, float, bool]]) -> None:
    result = Result("case", name, "Mrows/s", [side(ratios)])
    assert judged("kernels", [result]) == expected


def test_a_server_must_be_ready_soon() -> None:
    assert judged("kernels", [single("server ready, kernels cached", "s", {"persia": 3.5})]) == [(3.5, 3.0, False)]


def test_the_script_judges_files_and_what_comes_from_stdin(tmp_path: Path) -> None:
    script = [sys.executable, str(Path(targets.__file__))]
    good = json.dumps(told("kernels", [single("dedup of keys", "Mids/s", {"persia": 3.0, "np.unique": 1.0})]))
    bad = json.dumps(told("kernels", [single("dedup of keys", "Mids/s", {"persia": 1.0, "np.unique": 1.0})]))
    (tmp_path / "bad.json").write_text(bad)
    done = subprocess.run(script, input=good, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        ["met     dedup of keys, against np.unique: 3.000, at least 2.8", "1 of 1 targets met"],
    )
    done = subprocess.run([*script, "bad.json"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "0 of 1 targets met")


def test_quick_runs_are_not_judged() -> None:
    with pytest.raises(SystemExit, match="quick run"):
        targets.judge(told("kernels", [], quick=True))
