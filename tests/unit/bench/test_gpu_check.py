"""The check of a GPU finds faults, continues, keeps its deadline, and reports a missing GPU; all on a CPU."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from persia_cli.bench.baselines import trainers
from persia_cli.bench.machine import GpuUsage
from persia_cli.config.schema import DeepFm, Dlrm, Ffnn
from persia_cli.training.device import CPU
from persia_cli.training.pooling import DeviceRows
from persia_cli.training.step import DenseStep
from scripts.gpu import jobs
from scripts.gpu.bars import BARS, judged_by
from scripts.gpu.networks import check_networks
from scripts.gpu.paths import check_paths
from scripts.gpu.report import Finding
from scripts.gpu_check import Part, cases
from tests.conftest import poll_for

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "gpu_check.py"
MODELS = {"ffnn": Ffnn(kind="ffnn", dim=4, hidden=(8,)), "dlrm": Dlrm(kind="dlrm", dim=4, bottom=(7,), top=(9,))}


@pytest.fixture(autouse=True)
def _settings_kept():
    with trainers.settings_kept():
        yield


def endless() -> float:
    return 1e9


@pytest.mark.slow
def test_a_device_whose_weights_stay_fails_in_both_precisions(monkeypatch):
    right = DenseStep.update
    monkeypatch.setattr(DenseStep, "update", lambda self: right(self) if self.settings.by_kernels else None)
    found = list(check_networks({"dlrm": MODELS["dlrm"]}, CPU, endless, steps=3))
    assert [each.verdict for each in found] == ["FAIL", "FAIL"], found


def test_what_raises_fails_alone():
    broken = DeepFm(kind="deepfm", dim=1, hidden=(8,))
    found = list(check_networks({"broken": broken, "ffnn": MODELS["ffnn"]}, CPU, endless, steps=2))
    assert [each.verdict for each in found] == ["FAIL", "PASS", "PASS"]
    assert found[0].figures.startswith("ConfigError: ")


@pytest.mark.slow
def test_pooling_that_differs_fails(monkeypatch):
    right = DeviceRows._pooled
    monkeypatch.setattr(DeviceRows, "_pooled", lambda self, size: right(self, size) + 1e-3)
    found = {each.name: each.verdict for each in check_paths(MODELS["dlrm"], CPU, endless)}
    assert found["pooling on the device"] == "FAIL"


def test_bars_are_held_against_what_was_measured():
    name = "dlrm dim 128 batch 4096 float32"
    passed = [bar.endswith("passed") for bar in judged_by(name, 1.2e6, 2.5e6, 4.1e6)]
    assert passed == [True, False, True]
    assert len(judged_by(name, 1.2e6, None, 4.1e6)) == 2
    assert judged_by("another", 1.0, 1.0, 1.0) == []
    assert set(BARS) <= {case.name for case in cases(rehearse=False)}


def test_a_part_reports_progress_and_stops_at_its_deadline():
    said = json.dumps({"kind": "Finding", "found": {"name": "one", "verdict": "PASS", "figures": "1"}})
    program = f"import time; print({said!r}, flush=True); time.sleep(600)"
    begin = time.monotonic()
    found = list(Part("slow", 2.0, [sys.executable, "-c", program]).findings())
    assert found == [Finding("one", "PASS", "1"), Finding("slow", "FAIL", "it was stopped at its deadline")]
    assert time.monotonic() - begin < 30.0


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
    parts = ("networks", "paths", "timeline", "tier", "speed")
    command = [sys.executable, str(SCRIPT), "--rehearse", "--only", *parts, "--seconds", "300"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "gpu-report.md").read_text()
    assert "0 failed, 0 left out" in report
    assert "| dlrm | 16 | 256 | float32 |" in report
    assert re.search(r"INFO \| step of dlrm .* us from step to step;.* copy in .* graph .* copy out ", report)
    assert re.search(r"INFO \| tier dim 16 .* samples/s .* embedding-server-\d ", report)
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


def test_a_gpu_is_watched_while_it_is_wanted(tmp_path):
    script = tmp_path / "watcher"
    script.write_text("#!/bin/sh\necho 50\necho '[N/A]'\necho 100\nexec sleep 600\n")
    script.chmod(0o700)
    begin = time.perf_counter()
    with GpuUsage("GPU-1", (str(script),)) as usage:
        poll_for(lambda: usage.since(begin) == 0.75, 10.0, "both lines are read")
        assert usage.since(time.perf_counter()) is None
