"""Converting text and inspecting take no more memory for more rows."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.data.read.cache import CACHE
from tests.support.peak import PRINT_PEAK_KIB

PROGRAM = f"""\
import os, sys
from persia_cli.config.schema.dataset import CsvFormat
from persia_cli.data.read.converted import as_parquet, silent
from persia_cli.data.read.files import DataFile, locate
file = DataFile(sys.argv[1], os.path.getsize(sys.argv[1]))
as_parquet(locate(file.path).filesystem, [file], sys.argv[2], CsvFormat(), silent)
{PRINT_PEAK_KIB}
"""
ROWS = 20_000
MOST_MORE_KIB = 40 << 10


def write(path: Path, megabytes: int) -> Path:
    """Write rows of ten texts and a label, the same ones over and over."""
    ids = np.random.default_rng(0).integers(0, 10**6, (ROWS, 10)).tolist()
    if path.suffix == ".csv":
        head = "y," + ",".join(f"c{number}" for number in range(10)) + "\n"
        block = "".join("1," + ",".join(f"{each:x}z" for each in row) + "\n" for row in ids)
    else:
        head = ""
        block = "".join(f'{{"y": 1, "c": "{row[0]:x}z", "d": "{row[1]:x}z", "e": {row[2]}}}\n' for row in ids)
    with path.open("w") as file:
        file.write(head)
        for _ in range((megabytes << 20) // len(block)):
            file.write(block)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_conversion_does_not_grow_with_the_rows(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    peaks = []
    for megabytes in (80, 240):
        file = write(tmp_path / f"{megabytes}.{kind}", megabytes)
        command = [sys.executable, "-c", PROGRAM, str(file), kind]
        peaks.append(int(subprocess.run(command, capture_output=True, check=True, timeout=150).stdout))
        file.unlink()
    assert peaks[1] - peaks[0] < MOST_MORE_KIB, peaks


INSPECT = f"""\
import sys
from persia_cli.data.inspect.inspection import inspect_data
inspect_data(sys.argv[1], lambda done, total: None)
{PRINT_PEAK_KIB}
"""
INSPECTION_KIB = 768 << 10


def write_parquet(path: Path, rows: int, row_group_size: int) -> Path:
    rng = np.random.default_rng(0)
    ends = pa.array(8 * np.arange(rows + 1), pa.int32())
    lists = pa.ListArray.from_arrays(ends, pa.array(rng.integers(0, 10**6, 8 * rows)))
    columns = {"y": np.arange(rows) % 2, "id": rng.integers(0, 2**63, rows), "x": rng.random(rows), "ids": lists}
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


@pytest.mark.slow
def test_inspection_has_a_limit(tmp_path: Path) -> None:
    """Its memory does not grow with more rows or larger row groups."""
    few = write_parquet(tmp_path / "few.parquet", 400_000, 100_000)
    many = write_parquet(tmp_path / "many.parquet", 4_000_000, 4_000_000)
    assert many.stat().st_size > 150 << 20
    peaks = [
        int(subprocess.run([sys.executable, "-c", INSPECT, str(file)], capture_output=True, check=True).stdout)
        for file in (few, many)
    ]
    assert peaks[1] - peaks[0] < INSPECTION_KIB
