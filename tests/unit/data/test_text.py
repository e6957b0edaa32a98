"""Delimited text: damaged rows are counted and told by the right line."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.data.text import BadRow, BadRows, TextFile
from persia_cli.errors import DataError


def read(path: Path, allowed: int = 0, comment: str = "") -> tuple[list[list[bytes | None]], BadRows]:
    """Read two columns; a row whose first value is `x` is rejected."""
    bad = BadRows(allowed)
    rows: list[list[bytes | None]] = []
    for block in TextFile(path, ["a", "b"], "\t", bad, comment).blocks(lambda nbytes: None):
        columns = [block.columns.column(name).to_pylist() for name in ("a", "b")]
        block.reject(np.array([value == b"x" for value in columns[0]]), "a is x")
        rows.extend([a, b] for a, b, good in zip(*columns, block.good, strict=True) if good)
    return rows, bad


def test_values_are_bytes_empty_ones_null_and_line_ends_of_both_kinds(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes(b'1\t\xff\xfe\r\n\t2\n"3\t4\\\n5\t')
    assert read(path)[0] == [[b"1", b"\xff\xfe"], [None, b"2"], [b'"3', b"4\\"], [b"5", None]]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["1\t2", "x\t2", "1", "1\t2\t3", "", "#c"]), min_size=1, max_size=40))
def test_bad_rows_are_told_by_their_line(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("text") / "t.tsv"
    path.write_text("\n".join([*lines, "1\t2"]) + "\n")
    rows, bad = read(path, allowed=40, comment="#")
    wrong = {"x\t2": "a is x", "1": "1 column where 2 belong", "1\t2\t3": "3 columns where 2 belong"}
    expected = [(number, wrong[line]) for number, line in enumerate(lines, 1) if line in wrong]
    assert bad.count == len(expected)
    assert {(row.line, row.reason) for row in bad.first} <= set(expected)
    assert len(bad.first) == min(20, len(expected))
    assert rows.count([b"1", b"2"]) == lines.count("1\t2") + 1
    assert rows.count([None, None]) == lines.count("")


def test_lines_are_right_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persia_cli.data.text._BLOCK_BYTES", 32)
    path = tmp_path / "t.tsv"
    path.write_text("".join(f"{n}\tok\n" if n % 50 else "x\tbad\nshort\n" for n in range(200)))
    rows, bad = read(path, allowed=100)
    assert len(rows) == 196
    assert sorted(row.line for row in bad.first) == [1, 2, 52, 53, 103, 104, 154, 155]


def test_too_many_bad_rows_end_reading_and_name_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("1\t2\nx\t2\n3\n4\t5\n")
    with pytest.raises(DataError) as caught:
        read(path)
    assert "t.tsv line 3: 1 column where 2 belong" in str(caught.value)
    rows, bad = read(path, allowed=2)
    assert len(rows) == 2
    assert bad.first == [BadRow("t.tsv", 3, "1 column where 2 belong"), BadRow("t.tsv", 2, "a is x")]


def test_a_file_of_another_kind_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("1\t2\t3\n" * 100_000)
    with pytest.raises(DataError, match=r"do not parse, but at most 0 may fail(.|\n)*line 20: 3 col(.|\n)*more so far"):
        read(path)


def test_compressed_files_are_read_and_damaged_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv.gz"
    rng = np.random.default_rng(0)
    text = "".join(f"{a}\t{b}\n" for a, b in rng.integers(0, 10**9, (2000, 2)))
    packed = gzip.compress(text.encode())
    path.write_bytes(packed)
    assert len(read(path)[0]) == 2000
    for damaged in (packed[: len(packed) // 2], packed[:100] + b"\0" * 50 + packed[150:], b"no gzip at all"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"t\.tsv\.gz"):
            read(path)


@pytest.mark.parametrize("content", [b"", b"z" * (1 << 24)])
def test_no_text_in_columns(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"t\.tsv cannot be read as text in columns|1 column where 2 belong"):
        read(path)
    with pytest.raises(DataError, match="gone"):
        read(tmp_path / "gone")
