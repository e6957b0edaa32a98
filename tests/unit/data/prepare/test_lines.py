"""Whole lines of a file: each exactly once, however the file is cut and whatever it holds."""

import bz2
import gzip
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from persia_cli.data.prepare import lines
from persia_cli.data.prepare.lines import first_line, read_lines

TOO_LONG = b"(too long)"


def read(path: Path, start: int = 0, stop: int | None = None) -> list[bytes]:
    """The lines of a range, in order, with their ends."""
    found: list[bytes] = []
    for block in read_lines(path, start, stop, lambda nbytes: None):
        assert block is None or block.endswith(b"\n")
        found += [TOO_LONG] if block is None else block.splitlines(keepends=True)
    return found


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", 8)
        yield


@given(st.lists(st.integers(0, 20), max_size=12), st.booleans(), st.lists(st.integers(0, 150), max_size=4))
@settings(max_examples=50)
@example([9, 1], True, [1, 2, 9, 10])
@example([30], False, [5, 20])
@example([7, 8, 9], False, [8, 16])
def test_ranges_share_the_lines_out(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], ends: bool, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "t"
    expected = [bytes([97 + number]) * length + b"\n" for number, length in enumerate(lengths)]
    whole = b"".join(expected)
    if expected and not ends:
        whole = whole[:-1]
        expected = expected if lengths[-1] else expected[:-1]
    path.write_bytes(whole)
    bounds = sorted({0, *(cut for cut in cuts if cut < len(whole)), max(len(whole), 1)})
    found = [line for start, stop in pairwise(bounds) for line in read(path, start, stop)]
    assert len(found) == len(expected) == len(read(path))
    for line, right in zip(found, expected, strict=True):
        # A line may be as long as a block and must not be longer than two.
        assert line == right if len(right) <= 9 else line in (right, TOO_LONG)
        assert len(right) <= 17 or line == TOO_LONG


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_compressed_files_are_unpacked(tmp_path: Path, pack: object) -> None:
    path = tmp_path / f"t.{'gz' if pack is gzip.compress else 'bz2'}"
    path.write_bytes(pack(b"one\ntwo\nlonger than a block, much longer\nfour"))  # type: ignore[operator]
    told: list[int] = []
    blocks = list(read_lines(path, 0, None, told.append))
    assert b"".join(block or TOO_LONG for block in blocks) == b"one\ntwo\n" + TOO_LONG + b"four\n"
    assert sum(told) == path.stat().st_size
    assert read(path, start=1) == [b"two\n", TOO_LONG, b"four\n"]


def test_the_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes("\ufeffa,b\r\n1,2\n".encode())
    assert read(path) == [b"a,b\r\n", b"1,2\n"]
    assert read(path, start=1) == [b"1,2\n"]
    assert first_line(path) == b"a,b"
    path.write_bytes(b"")
    assert (read(path), first_line(path)) == ([], b"")


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"12345\n" * 10)
    told: list[int] = []
    list(read_lines(path, 0, None, told.append))
    assert sum(told) == 60
