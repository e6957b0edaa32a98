"""The check of a GPU finds faults, continues, keeps its deadline, and reports a missing GPU; all on a CPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from persia_cli.bench.baselines import trainers
from persia_cli.bench.breakdown import bottleneck
from persia_cli.bench.machine import GpuUsage
from persia_cli.bench.result import Side, Stage
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import DeepFm, Dlrm, Ffnn
from persia_cli.train.device import CPU
from persia_cli.train.device_pooling import DeviceRows
from persia_cli.train.distributed import World
from persia_cli.train.step import DenseStep
from scripts.gpu import jobs
from scripts.gpu.batches import Trainer
from scripts.gpu.networks import check_networks
from scripts.gpu.paths import check_paths
from scripts.gpu.report import Finding, Speed, page
from scripts.gpu.speed import Case, measure, phases
from scripts.gpu_check import Part
from tests.conftest import poll_for
from tests.support.small import WORDS

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "gpu_check.py"
MODELS = {
    "ffnn": Ffnn(kind="ffnn", dim=4, hidden=(8,)),
    "dlrm": Dlrm(kind="dlrm", dim=4, bottom=(7,), top=(9,)),
}


@pytest.fixture(autouse=True)
def _settings_kept():
    with trainers.settings_kept():
        yield


def endless() -> float:
    return 1e9


def test_networks_that_agree_pass():
    found = list(check_networks(MODELS, CPU, endless, steps=3))
    assert [(each.name, each.verdict) for each in found] == [
        (f"network {name} {precision}, 3 steps", "PASS") for name in MODELS for precision in ("float32", "bfloat16")
    ]
    # Not because they stand still.
    trainer = Trainer(MODELS["ffnn"], World())
    before = trainer.rows.copy()
    trainer.trajectory(3, 32)
    assert 1e-3 < abs(trainer.rows - before).max() < 0.1


def test_a_network_that_differs_fails_in_float32(monkeypatch):
    right = DeviceRows._pooled
    monkeypatch.setattr(DeviceRows, "_pooled", lambda self, size: right(self, size) * 1.003)
    verdicts = {each.name: each.verdict for each in check_networks({"ffnn": MODELS["ffnn"]}, CPU, endless, steps=2)}
    assert next(verdict for name, verdict in verdicts.items() if "float32" in name) == "FAIL"


def test_a_device_whose_weights_stay_fails_in_both_precisions(monkeypatch):
    right = DenseStep.update
    monkeypatch.setattr(DenseStep, "update", lambda self: right(self) if self._settings.by_kernels else None)
    found = list(check_networks({"dlrm": MODELS["dlrm"]}, CPU, endless))
    assert [each.verdict for each in found] == ["FAIL", "FAIL"], found


def test_what_raises_fails_alone():
    broken = DeepFm(kind="deepfm", dim=1, hidden=(8,))
    found = list(check_networks({"broken": broken, "ffnn": MODELS["ffnn"]}, CPU, endless, steps=2))
    assert [each.verdict for each in found] == ["FAIL", "PASS", "PASS"]
    assert found[0].figures.startswith("ConfigError: ")


def test_what_there_is_no_time_for_is_left_out():
    assert {each.verdict for each in check_paths(MODELS["dlrm"], CPU, lambda: 0.0)} == {"LEFT OUT"}


def test_the_ways_to_a_device_are_checked():
    found = list(check_paths(MODELS["dlrm"], CPU, endless))
    assert [each.verdict for each in found] == ["PASS"] * 5 + ["INFO"]


def test_pooling_that_differs_fails(monkeypatch):
    right = DeviceRows._pooled
    monkeypatch.setattr(DeviceRows, "_pooled", lambda self, size: right(self, size) + 1e-3)
    found = {each.name: each.verdict for each in check_paths(MODELS["dlrm"], CPU, endless)}
    assert found["pooling on the device"] == "FAIL"


def test_a_part_reports_progress_and_stops_at_its_deadline():
    said = json.dumps({"kind": "Finding", "found": {"name": "one", "verdict": "PASS", "figures": "1"}})
    program = f"import time; print({said!r}, flush=True); time.sleep(600)"
    begin = time.monotonic()
    found = list(Part("slow", 2.0, [sys.executable, "-c", program]).findings())
    assert found == [Finding("one", "PASS", "1"), Finding("slow", "FAIL", "it was stopped at its deadline")]
    assert time.monotonic() - begin < 30.0


def test_a_part_that_breaks_off_fails():
    found = list(Part("broken", 60.0, [sys.executable, "-c", "raise SystemExit(3)"]).findings())
    assert found == [Finding("broken", "FAIL", "its process ended with 3; see above")]


def test_a_missing_gpu_is_reported(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], cwd=tmp_path, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        f"gpu_check: torch {torch.__version__} sees no CUDA device here, so there is nothing to check\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(400)
def test_a_rehearsal_writes_the_report(tmp_path):
    command = [sys.executable, str(SCRIPT), "--rehearse", "--only", "networks", "paths", "speed", "--seconds", "300"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "gpu-report.md").read_text()
    assert "0 failed, 0 left out" in report
    assert "| dlrm | 16 | 256 | float32 |" in report
    assert "One rank's step, each part waited for, in ms: rows to the device" in report


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_jobs_are_held_against_the_one_on_the_cpu(monkeypatch):
    chosen = (jobs.CPU, "on the GPU", "on the GPU, two ranks")
    monkeypatch.setattr(jobs, "CASES", {name: jobs.CASES[name] for name in chosen})
    found = list(jobs.check_jobs("cpu", 1, lambda: 500.0, ["conf=adult_income", "mode=sync"]))
    assert [each.verdict for each in found] == ["PASS"] * 4, found
    assert "evaluated on the CPU" in found[-1].name


def test_a_job_that_fails_is_reported_with_its_own_message():
    (found,) = jobs.check_jobs("cpu", 2, lambda: 100.0, ["conf=no_such_thing"])
    assert found.verdict == "FAIL"
    assert "error: conf=no_such_thing: no such configuration" in found.figures


def test_a_speed_that_cannot_be_measured_fails_alone():
    cases = [Case("ffnn", 4, 32, "float32", 4, 2)] * 2
    refused = compose_run([*WORDS, "cluster=embedded"])
    found = list(measure(cases, lambda case: refused, 1, endless, lambda text: None))
    assert [each.verdict for each in found if isinstance(each, Finding)].count("FAIL") == 2
    left = list(measure(cases, lambda case: refused, 1, lambda: 1.0, lambda text: None))
    assert [each.verdict for each in left] == ["LEFT OUT"]


def test_parts_of_a_step_add_up_to_it():
    run = compose_run([*WORDS, "train.device=cpu"])
    taken = phases(run)
    assert {"rows to the device", "forward", "fetch scores", "backward", "fetch gradients", "dense update"} <= set(
        taken
    )
    assert all(ms >= 0.0 for ms in taken.values())


def test_the_report_shows_what_was_found():
    speed = Speed(
        "dlrm", 16, 4096, "float32", 1e6, None, 2e6, {"persia": 0.25}, {"nn-worker-0 forward": 1.5}, {"forward": 1.0}
    )
    parts = {"networks": [Finding("a | b", "FAIL", "1\n2"), Finding("c", "PASS", "3")], "speed": [speed]}
    text = page({"GPU": "some"}, parts, "python scripts/gpu_check.py")
    assert "1 passed, 1 failed, 0 left out" in text
    assert "| FAIL | a \\| b | 1 2 |" in text
    assert "| dlrm | 16 | 4,096 | float32 | 1,000,000 | does not fit | 2,000,000 |  | 0.50 | 25% |" in text
    assert "nn-worker-0 forward 1.50" in text


def test_a_gpu_is_watched_while_it_is_wanted(tmp_path):
    script = tmp_path / "watcher"
    script.write_text("#!/bin/sh\necho 50\necho '[N/A]'\necho 100\nexec sleep 600\n")
    script.chmod(0o700)
    begin = time.perf_counter()
    with GpuUsage("GPU-1", (str(script),)) as usage:
        poll_for(lambda: usage.since(begin) == 0.75, 10.0, "both lines are read")
        assert usage.since(time.perf_counter()) is None


def test_without_the_drivers_tool_nothing_is_known():
    with GpuUsage("GPU-1", ("no-such-command",)) as usage:
        assert usage.since(0.0) is None


def test_an_nn_worker_that_seldom_waits_is_the_bottleneck_with_its_gpu():
    run = compose_run(WORDS)
    ours = Side("persia", 3200.0, 3200.0, 3200.0, cpu_ms={"nn-worker-0": 1.0, "embedding-worker-0": 1.0})
    said = [
        bottleneck(run, ours, None, [Stage("nn-worker-0", "wait for batch", ms, False)], on_gpu=True)
        for ms in (0.5, 6.0)
    ]
    assert said[0].startswith("The NN worker with its GPU is the bottleneck: of a step of 10.0 ms it waits 0.50 ms")
    assert said[1].startswith("Waiting is the bottleneck")
