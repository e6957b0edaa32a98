"""Rows of a file: each exactly once and whole, however the file is cut and whatever it holds."""

import bz2
import csv
import gzip
import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from persia_cli.data.read import text
from persia_cli.data.read.bad_rows import BadRows
from persia_cli.data.read.text import Layout, TextFile, header_of, read_rows, texts_of
from persia_cli.errors import DataError

TOO_LONG = b"(too long)"
QUOTED = Layout(delimiter=",", quote='"', spanning=True, blank_lines=True)


def read(path: Path, start: int = 0, stop: int | None = None, layout: Layout = Layout()) -> list[bytes]:  # noqa: B008
    """The rows of a range, in order, with their ends."""
    found: list[bytes] = []

    def reject(lines: object, reasons: list[str]) -> None:
        found.extend([TOO_LONG] * len(reasons))

    for rows in read_rows(TextFile(str(path)), layout, reject, start, stop):
        found += [rows.data[begin:end] for begin, end in pairwise(rows.starts.tolist())]
    return found


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", 8)
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
    assert read(path) == [b"one\n", b"two\n", TOO_LONG, b"four\n"]
    assert read(path, layout=Layout(header=True)) == [b"two\n", TOO_LONG, b"four\n"]


def test_the_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes("\ufeffa,b\r\n1,2\n".encode())
    assert read(path) == [b"a,b\r\n", b"1,2\n"]
    assert header_of(TextFile(str(path)), Layout(delimiter=",")) == ["a", "b"]
    path.write_bytes(b"")
    assert read(path) == []


def test_all_bytes_of_a_file_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"12345\n" * 10)
    told: list[int] = []
    list(read_rows(TextFile(str(path), told.append), Layout(), lambda lines, reasons: None))
    assert sum(told) == 60


FIELDS = st.lists(st.sampled_from(["a", "b", '"', ",", " ", "\n", "\r\n"]), max_size=4).map("".join)


@given(st.lists(st.lists(FIELDS, min_size=2, max_size=3), max_size=8), st.integers(8, 40))
@settings(max_examples=100)
def test_fields_and_lines_are_those_of_pythons_reader(
    tmp_path_factory: pytest.TempPathFactory, table: list[list[str]], block: int
) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerows(table)
    path = tmp_path_factory.mktemp("rows") / "t.csv"
    path.write_text(file.getvalue(), newline="")
    bad, found = BadRows(99), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", 8 * block)
        for rows in read_rows(TextFile(str(path)), QUOTED, lambda *each: bad.reject(path, 0, *each)):
            lines, columns = texts_of(rows, QUOTED, 2, range(2), lambda *each: bad.reject(path, 0, *each))
            found += list(zip(lines.tolist(), *(column.to_pylist() for column in columns), strict=True))
    expected, before = [], 0
    reader = csv.reader(io.StringIO(file.getvalue(), newline=""))
    for row in reader:
        if row:
            expected.append((before + 1, *row))
        before = reader.line_num
    assert found == [tuple(each or None for each in row) for row in expected if len(row) == 3]
    assert [row.line for row in bad.found] == [row[0] for row in expected if len(row) == 4]


def test_a_quote_that_stays_open_ends_the_reading_before_memory_is_full(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for rest, told in ((b"", "is never closed"), (b"x\n" * 1000, "seems not to be closed")):
        path.write_bytes(b'a,b\n"c,d\n' + rest)
        with pytest.raises(DataError, match=rf"t\.csv line 2: a quote in this row {told}"):
            read(path, layout=QUOTED)
    path.write_bytes(b'a,5"\n"c"d,e\n"f",g\n')
    bad = BadRows(9)
    texts = [
        texts_of(rows, QUOTED, 2, range(2), lambda *each: bad.reject(path, 0, *each))[1][1].to_pylist()
        for rows in read_rows(TextFile(str(path)), QUOTED, lambda *each: bad.reject(path, 0, *each))
    ]
    assert [each for some in texts for each in some] == ['5"', "g"]
    assert [str(row) for row in bad.found] == ["line 2: a quote is not closed where its field ends"]


def test_lines_of_bad_rows_count_from_the_beginning_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(20)))
    for start in range(path.stat().st_size):
        bad = BadRows(99)
        rows = [
            int(each) for some in read_rows(TextFile(str(path)), Layout(), lambda *_: None, start)
            for each in some.data[some.starts[0] : some.starts[-1]].split()
        ]  # fmt: skip
        bad.reject(path, start, np.array([1]), ["wrong"])
        assert bad.first()[0].line == 1 + (rows[0] if rows else 20)
