"""A save needs little memory in addition to the table, also while every row changes: space for 4 % of the rows, and a
few blocks for the disk."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKS_BYTES = 110 * 2**20
"""Upper bound of a save's memory for a table of any size: blocks and portions in flight, libraries."""


def saved(rows: int, folder: Path) -> dict[str, int]:
    """Save a table in a separate process; returns the output of `tests.support.save_memory`."""
    words = [sys.executable, "-m", "tests.support.save_memory", str(rows), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, int] = json.loads(done.stdout)
    return told


def test_it_does_not_grow_with_the_table(tmp_path: Path) -> None:
    told = saved(1_000_000, tmp_path)
    assert told["nbytes"] > BLOCKS_BYTES, "a copy of all rows would be noticed"
    assert told["most"] - told["before"] < 0.1 * told["nbytes"] + BLOCKS_BYTES


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_of_ten_million_rows_it_is_at_most_a_tenth(tmp_path: Path) -> None:
    told = saved(10_000_000, tmp_path)
    assert told["most"] <= 1.1 * told["before"]
