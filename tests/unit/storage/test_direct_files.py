"""Local files that are written and read past the page cache."""

import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh128

from persia_cli.storage import hashed_files, local_files
from persia_cli.storage.hashed_files import HashingFile
from persia_cli.storage.local_files import HUGE_PAGE, BlockPool, LocalSource, open_directly
from persia_cli.storage.locations import reading_stream, writing_file

BLOCK = 8192
FOLDERS = [Path(gettempdir()), Path("/dev/shm")]
"""A folder of a disk and one of memory: only few file systems of memory write directly."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashed_files, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(local_files, "MIN_SHARED_BYTES", 8192)
    monkeypatch.setattr(local_files, "BEYOND_BYTES", 4096)


def written(path: Path, pieces: list[bytes]) -> tuple[str, int]:
    with writing_file(path) as sink, HashingFile(sink) as file:
        for piece in pieces:
            assert file.write(piece) == len(piece)
        return file.finish(), file.nbytes


@given(st.lists(st.sampled_from([0, 1, 100, 4096, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK])), st.sampled_from(FOLDERS))
@settings(deadline=None, max_examples=60)
def test_a_file_has_what_was_written_and_its_checksum(sizes: list[int], folder: Path) -> None:
    pieces = [np.random.default_rng(number).bytes(size) for number, size in enumerate(sizes)]
    with TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "new" / "file"
        digest, nbytes = written(path, pieces)
        content = b"".join(pieces)
        assert path.read_bytes() == content
        assert (digest, nbytes) == (xxh128(content).hexdigest(), len(content))


class Full:
    """A sink that takes so many blocks."""

    def __init__(self, blocks: int) -> None:
        self.left = blocks

    def write(self, data: Any) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "full")
        return len(data)


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_an_error_of_the_sink_is_raised_at_the_latest_at_the_end(blocks: int) -> None:
    def write(file: HashingFile) -> None:
        file.write(bytes(BLOCK))
        file.write(bytes(BLOCK))
        file.write(b"the end")
        file.finish()

    with HashingFile(Full(blocks)) as file, pytest.raises(OSError, match="full"):
        write(file)


def test_pending_blocks_are_not_overwritten() -> None:
    """A slow sink gets each block unchanged; one that stores its input must copy it."""
    got: list[bytes] = []

    class Slow:
        def write(self, data: Any) -> int:
            before = bytes(data)
            os.sched_yield()
            assert bytes(data) == before
            got.append(before)
            return len(data)

    pieces = [bytes([number]) * (BLOCK // 3) for number in range(100)]
    with HashingFile(Slow()) as file:
        for piece in pieces:
            file.write(piece)
        digest = file.finish()
    assert b"".join(got) == b"".join(pieces)
    assert digest == xxh128(b"".join(pieces)).hexdigest()


SIZES = [0, 1, 100, 4095, 4096, 4097, 20_000, 70_000]


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
    first = pool.borrow(100)
    address = np.frombuffer(first, np.uint8).ctypes.data
    part = first[10:20]
    del first
    assert np.frombuffer(pool.borrow(100), np.uint8).ctypes.data != address, "a part is in use"
    del part
    taken = [pool.borrow(100) for _ in range(2)]
    assert address in {np.frombuffer(each, np.uint8).ctypes.data for each in taken}
    assert len(pool.borrow(HUGE_PAGE + 1)) == 2 * HUGE_PAGE


def test_a_file_that_becomes_shorter_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    with open(path, "rb", buffering=0, opener=open_directly) as file:
        source = LocalSource(file)
        assert len(source.read(10)) == 10
        os.truncate(path, 50_000)
        assert len(source.read(100_000)) == 49_990


def test_a_file_system_without_direct_access_is_used_as_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_ = os.open

    def opened(path: Any, flags: int, mode: int = 0o777, **where: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return open_(path, flags, mode, **where)

    monkeypatch.setattr(os, "open", opened)
    content = b"x" * 3 * BLOCK
    written(tmp_path / "file", [content])
    with reading_stream(tmp_path / "file") as source:
        assert source.read(-1) == content
