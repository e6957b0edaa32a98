"""`persia recipe prepare` as a process: killed in the middle it goes on, and its memory is bounded."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.conftest import poll_for
from tests.support.peak import PRINT_PEAK_KIB

LINE = b"\t".join([b"1", *[b"7"] * 13, *[b"%08x" % (2**31 + n) for n in range(26)]]) + b"\n"


def command(output: Path) -> list[str]:
    words = ["recipe", "prepare", "criteo", "--input", "days", "--output", str(output), "--workers", "1"]
    return [sys.executable, "-m", "persia_cli", *words]


def test_a_killed_preparation_goes_on(tmp_path: Path) -> None:
    (tmp_path / "days").mkdir()
    for day, rows in enumerate((1_000, 60_000, 60_000)):
        (tmp_path / "days" / f"day_{day}").write_bytes(LINE * rows)
    killed = subprocess.Popen(command(tmp_path / "out"), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    finished = tmp_path / ".out.partial" / "day_0-0000.state"
    poll_for(lambda: finished.exists() or killed.poll() is not None, 60.0, "the first file to be finished")
    killed.send_signal(signal.SIGKILL)
    _, told = killed.communicate(timeout=10.0)
    assert killed.returncode == -signal.SIGKILL, told
    assert not (tmp_path / "out").exists()
    made = tmp_path / ".out.partial" / "day_0-0000.parquet"
    before = made.stat()

    done = subprocess.run(command(tmp_path / "out"), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "121,000 rows" in done.stderr
    assert "kept      1 file of an earlier run" in done.stderr
    after = (tmp_path / "out" / "day_0-0000.parquet").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert sum(pq.read_metadata(file).num_rows for file in (tmp_path / "out").glob("*.parquet")) == 121_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["days", "out"]


@pytest.mark.slow
def test_memory_is_bounded_by_threads_not_by_the_size_of_files(tmp_path: Path) -> None:
    """Half a gigabyte of text in one file, rare ids counted: less than a gigabyte of memory."""
    ids = np.random.default_rng(0).integers(0, 2**32, (100_000, 26))
    rows = "".join("1" + "\t7" * 13 + "".join(f"\t{each:08x}" for each in row) + "\n" for row in ids.tolist())
    with (tmp_path / "days").open("w") as file:
        for _ in range(20):
            file.write(rows)
    child = f"from persia_cli.main import main\ntry:\n    main()\nfinally:\n    {PRINT_PEAK_KIB}"
    words = [*command(tmp_path / "out")[3:-2], "--min-count", "2"]
    done = subprocess.run(
        [sys.executable, "-c", child, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "2,000,000 rows" in done.stderr
    assert int(done.stdout.splitlines()[-1]) < 1 << 20
