"""Local files that are read past the page cache, into memory that is reused."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.storage import local_files
from persia_cli.storage.blocks import HUGE_PAGE, BlockPool
from persia_cli.storage.local_files import LocalSource, open_directly
from persia_cli.storage.places import reading_stream

FOLDERS = [Path(gettempdir()), Path("/dev/shm")]
"""A folder of a disk and one of memory: only few file systems of memory read directly."""
SIZES = [0, 1, 100, 4095, 4096, 4097, 20_000, 70_000]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "MIN_SHARED_BYTES", 8192)
    monkeypatch.setattr(local_files, "BEYOND_BYTES", 4096)


@given(st.sampled_from([*SIZES, 300_001]), st.lists(st.sampled_from(SIZES), max_size=12), st.sampled_from(FOLDERS))
@settings(deadline=None, max_examples=80)
def test_the_read_content_is_that_of_the_file(nbytes: int, sizes: list[int], folder: Path) -> None:
    content = np.random.default_rng(nbytes).bytes(nbytes)
    with TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "file"
        path.write_bytes(content)
        with reading_stream(path) as source:
            parts = [source.read(size) for size in sizes]
            parts.append(source.read(-1))
            assert not source.read(10), "nothing is left"
    assert b"".join(parts) == content, "no part was overwritten while it was in use"
    assert [len(part) for part in parts[:-1]] == [
        min(size, max(0, nbytes - sum(sizes[:number]))) for number, size in enumerate(sizes)
    ]


def test_unreferenced_memory_is_reused() -> None:
    pool = BlockPool()
    first = pool.take(100)
    address = np.frombuffer(first, np.uint8).ctypes.data
    part = first[10:20]
    del first
    assert np.frombuffer(pool.take(100), np.uint8).ctypes.data != address, "a part is in use"
    del part
    taken = [pool.take(100) for _ in range(2)]
    assert address in {np.frombuffer(each, np.uint8).ctypes.data for each in taken}
    assert len(pool.take(HUGE_PAGE + 1)) == 2 * HUGE_PAGE


def test_a_file_that_becomes_shorter_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    with open(path, "rb", buffering=0, opener=open_directly) as file:
        source = LocalSource(file)
        assert len(source.read(10)) == 10
        os.truncate(path, 50_000)
        assert len(source.read(100_000)) == 49_990
