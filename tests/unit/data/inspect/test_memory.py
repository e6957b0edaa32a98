"""Inspecting takes no more memory than its queries may have, for more rows or larger row groups."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.peak import PRINT_PEAK_KIB

PROGRAM = f"""\
import sys
from persia_cli.data.inspect.inspection import inspect_data
inspect_data(sys.argv[1], lambda done, total: None)
{PRINT_PEAK_KIB}
"""
MEMORY_KIB = 768 << 10


def write(path: Path, rows: int, row_group_size: int) -> Path:
    rng = np.random.default_rng(0)
    lengths = np.full(rows, 8)
    lists = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32()), pa.array(rng.integers(0, 10**6, 8 * rows))
    )
    columns = {"y": np.arange(rows) % 2, "id": rng.integers(0, 2**63, rows), "x": rng.random(rows), "ids": lists}
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


@pytest.mark.slow
def test_memory_has_a_limit(tmp_path: Path) -> None:
    few = write(tmp_path / "few.parquet", 400_000, 100_000)
    many = write(tmp_path / "many.parquet", 4_000_000, 4_000_000)
    assert many.stat().st_size > 150 << 20
    peaks = [
        int(subprocess.run([sys.executable, "-c", PROGRAM, str(file)], capture_output=True, check=True).stdout)
        for file in (few, many)
    ]
    assert peaks[1] - peaks[0] < MEMORY_KIB
