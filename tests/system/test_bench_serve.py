"""The comparison `serve` starts a server, loads it from a third process, and leaves none of them."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.small_model import NAME, write_small_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_server_against_its_network_alone(tmp_path: Path) -> None:
    model = write_small_model(tmp_path / NAME)
    options = ["--candidates", "20", "--user", "user", "--quick", "--json"]
    command = [sys.executable, "-m", "scripts.measure", "serve", str(model), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "a quick run: its numbers have no meaning\n")
    results = {result["name"]: result for result in json.loads(done.stdout)["results"]}
    for name in ("4 connections, 20 candidates", "4 connections, 1 candidate"):
        ours, alone = results[name]["sides"]
        assert ours["ratios"] == {alone["name"]: pytest.approx(ours["median"] / alone["median"])}
        latencies = [results[f"{name}: latency of the {part}th percentile"]["sides"][0]["median"] for part in (50, 99)]
        assert 0 < latencies[0] <= latencies[1]
    assert len([name for name in results if name.startswith("random moments") and name.endswith("candidates")]) == 2
    assert all("0 errors" in result["note"] for result in results.values() if result["note"])
    left = [each for each in psutil.process_iter(["cmdline"]) if str(model) in (each.info["cmdline"] or [])]
    assert left == []
