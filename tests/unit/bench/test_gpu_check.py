"""The checks of a GPU find faults, continue, keep their deadline, and report a missing GPU; all on a CPU."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from persia_cli.bench import baselines
from persia_cli.bench.machine import GpuUsage
from persia_cli.bench.result import Result
from persia_cli.config.schema import DeepFm, Dlrm, Ffnn
from persia_cli.training.device import CPU
from persia_cli.training.pooling import DeviceRows
from persia_cli.training.step import DenseStep
from scripts.measure import __main__, targets
from scripts.measure.comparisons import gpu
from scripts.measure.gpu import Check, jobs, run_checks
from scripts.measure.gpu.networks import network_checks
from scripts.measure.gpu.paths import path_checks
from tests.conftest import poll_for

ROOT = Path(__file__).resolve().parents[3]
MODELS = {"ffnn": Ffnn(kind="ffnn", dim=4, hidden=(8,)), "dlrm": Dlrm(kind="dlrm", dim=4, bottom=(7,), top=(9,))}


@pytest.fixture(autouse=True)
def _settings_kept():
    with baselines.settings_kept():
        yield


def run_all(checks: dict[str, Check]) -> list[Result]:
    return list(run_checks(checks, lambda: 1e9))


def passed(results: list[Result]) -> list[bool]:
    assert all(result.name.startswith("check ") for result in results)
    return [each.met for each in targets.judge(results)]


@pytest.mark.slow
def test_a_device_whose_weights_stay_fails_in_both_precisions(monkeypatch):
    right = DenseStep.update
    monkeypatch.setattr(DenseStep, "update", lambda self: right(self) if self.settings.by_kernels else None)
    assert passed(run_all(network_checks({"dlrm": MODELS["dlrm"]}, CPU, steps=3))) == [False, False]


def test_what_raises_fails_alone():
    broken = DeepFm(kind="deepfm", dim=1, hidden=(8,))
    results = run_all(network_checks({"broken": broken, "ffnn": MODELS["ffnn"]}, CPU, steps=2))
    assert passed(results) == [False, True, True]
    assert results[0].note.startswith("ConfigError: ")


def test_what_is_not_a_number_fails_and_what_has_no_time_is_left_out():
    from scripts.measure.gpu import compared

    assert passed([compared("x", {"a": 0.0, "b": math.nan}, {"a": 1.0, "b": 1.0})]) == [False]
    [result] = run_checks({"x": lambda: iter(())}, lambda: 1.0)
    assert result.name == "left out: x"


@pytest.mark.slow
def test_pooling_that_differs_fails(monkeypatch):
    right = DeviceRows._pooled
    monkeypatch.setattr(DeviceRows, "_pooled", lambda self, size: right(self, size) + 1e-3)
    checks = path_checks(MODELS["dlrm"], CPU)
    assert passed(run_all({"pooling": checks["pooling on the device"]})) == [False]


def test_every_case_with_targets_is_measured():
    assert set(targets.GPU_SPEEDS) <= {case.name for case in gpu.cases(rehearse=False)}


def test_a_part_reports_progress_and_stops_at_its_deadline():
    program = (
        "import sys, time; from multiprocessing.connection import Connection; "
        "sender = Connection(int(sys.argv[1])); sender.send('a result'); time.sleep(600)"
    )
    begin = time.monotonic()
    first, last = gpu.in_process("slow", 10.0, [sys.executable, "-c", program])
    assert (first, last.name, last.note) == ("a result", "check part slow", "it was stopped at its deadline")
    assert time.monotonic() - begin < 60.0


def test_a_missing_gpu_is_reported(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert __main__.main(["gpu"]) == 2
    assert "sees no CUDA device here, so there is nothing to check" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(400)
def test_a_rehearsal_checks_and_measures_all():
    parts = ("networks", "paths", "timeline", "tier", "speed")
    command = [
        sys.executable,
        "-m",
        "scripts.measure",
        "gpu",
        "--rehearse",
        "--json",
        "--only",
        *parts,
        "--seconds",
        "300",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = json.loads(done.stdout)
    assert all(each.met for each in targets.judge_json(printed))
    results = {result["name"]: result for result in printed["results"]}
    assert not [name for name in results if name.startswith("left out")]
    case = "dlrm dim 16 batch 256 float32"
    assert {"copy in", "graph", "copy out"} <= {stage["stage"] for stage in results[f"step of {case}"]["stages"]}
    assert any("embedding-server" in stage["replica"] for stage in results[f"tier {case}"]["stages"])
    assert "rows to the device" in {stage["stage"] for stage in results[f"speed {case}"]["stages"]}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_jobs_are_held_against_the_one_on_the_cpu(monkeypatch):
    chosen = (jobs.CPU, jobs.GPU, "on the GPU, two ranks")
    monkeypatch.setattr(jobs, "CASES", {name: jobs.CASES[name] for name in chosen})
    results = list(jobs.check_jobs("cpu", 1, lambda: 500.0, ["conf=adult_income", "mode=sync"]))
    assert passed(results) == [True] * 4, results
    assert "evaluated on the CPU" in results[-1].name


def test_a_gpu_is_watched_while_it_is_wanted(tmp_path):
    script = tmp_path / "watcher"
    script.write_text("#!/bin/sh\necho 50\necho '[N/A]'\necho 100\nexec sleep 600\n")
    script.chmod(0o700)
    begin = time.perf_counter()
    with GpuUsage("GPU-1", (str(script),)) as usage:
        poll_for(lambda: usage.since(begin) == 0.75, 10.0, "both lines are read")
        assert usage.since(time.perf_counter()) is None
