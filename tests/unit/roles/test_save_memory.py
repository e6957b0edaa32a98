"""A save needs little memory in addition to the table, also while every row changes: space for 4 % of the rows, and a
few blocks for the disk."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_of_ten_million_rows_it_is_at_most_a_tenth(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.support.save_memory", "10_000_000", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, int] = json.loads(done.stdout)
    assert told["most"] <= 1.1 * told["before"]
