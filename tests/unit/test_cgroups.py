"""A container has the memory and the processors that its control groups leave it, in both versions of them."""

import os
from pathlib import Path

import pytest

from persia_cli.cgroups import memory_bytes, processor_limit

OWN = "4:memory:/docker/a\n2:cpu,cpuacct:/docker/a\n1:pids:/x\n0::/slice/job\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "own").write_text(OWN)
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def test_the_least_limit_of_memory_counts(root: Path) -> None:
    write(root, {"memory/docker/a/memory.limit_in_bytes": "9223372036854771712", "slice/job/memory.max": "max"})
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_bytes(root / "own", root) == memory_bytes(root / "none", root) == machine
    write(root, {"memory/memory.limit_in_bytes": "800", "x/memory.max": "5", "slice/memory.max": "700"})
    assert memory_bytes(root / "own", root) == 700


def test_the_least_limit_of_processors_counts(root: Path) -> None:
    write(
        root,
        {"cpu/docker/a/cpu.cfs_quota_us": "-1", "cpu/docker/a/cpu.cfs_period_us": "100000", "cpu.max": "max 100000"},
    )
    assert processor_limit(root / "own", root) is None
    write(root, {"slice/cpu.max": "250000 100000"})
    assert processor_limit(root / "own", root) == 2.5
    write(root, {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"})
    assert processor_limit(root / "own", root) == 0.5
    assert processor_limit(root / "none", root) is None
