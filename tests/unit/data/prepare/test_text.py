"""Delimited text as typed columns: damaged rows are counted and reported with the right line."""

import gzip
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.data.prepare import parts
from persia_cli.data.prepare.parts import PartLog, read_blocks, read_table, text_parts
from persia_cli.data.prepare.text import TextBlock, TextFormat
from persia_cli.data.read import text
from persia_cli.data.read.bad_rows import SHOWN, BadRows
from persia_cli.data.read.ids import text_id
from persia_cli.data.read.kinds import BYTES, INTEGER, NUMBER, SKIP, TEXT, hexadecimal, text_of
from persia_cli.errors import DataError

PAIRS = TextFormat({"a": INTEGER, "b": TEXT}, comment="#", blank_lines=True)


def blocks_of(path: Path, format: TextFormat, bad: BadRows) -> list[TextBlock]:
    return list(read_blocks(path, format, PartLog(bad, lambda nbytes: None)))


def one_block(path: Path, format: TextFormat, content: bytes) -> TextBlock:
    path.write_bytes(content)
    [block] = blocks_of(path, format, BadRows(0))
    return block


def bad_rows(path: Path, format: TextFormat, content: bytes) -> list[tuple[int, str]]:
    path.write_bytes(content)
    bad = BadRows(1000)
    blocks_of(path, format, bad)
    assert bad.count == len(bad.first())
    return [(row.line, row.reason) for row in bad.first()]


def test_columns_have_their_declared_kinds(tmp_path: Path) -> None:
    kinds = {"i": INTEGER, "h": hexadecimal(0), "x": NUMBER, "t": TEXT, "s": text_of("t"), "b": BYTES, "_": SKIP}
    format = TextFormat(kinds, delimiter=",", quote='"', stripped=True)
    content = '-7,ff,1.5,a,"a",x y ,?\r\n ,,,,,,\n1,F0,1e-400,"""q""",b,"é, ""e""",\n'
    block = one_block(tmp_path / "t", format, content.encode())
    assert block.integers("i", missing=3).tolist() == [-7, 3, 1]
    assert block.ids("h").to_pylist() == [255, None, 240]
    assert block.numbers("x", missing=0.5).tolist() == [1.5, 0.5, 0.0]
    assert block.ids("t").to_pylist() == [text_id("t", "a"), None, text_id("t", '"q"')]
    assert block.ids("s").to_pylist() == [text_id("t", "a"), None, text_id("t", "b")]
    assert block.texts("b").to_pylist() == ["x y", None, 'é, "e"']
    assert block.ids("i").to_pylist() == [2**64 - 7, None, 1]


WRONG: dict[bytes, str | None] = {
    b"1\tx": None,
    b"#\tx": None,
    b"": None,
    b"1": "1 field where there are 2 columns: 1",
    b"1\t2\t3": "3 fields where there are 2 columns: 1 2 3",
    b"1\tx\r": None,
    b"x\ty": "a is not an integer of at most 18 digits",
    b"1\t\xff": "b is not UTF-8",
    b"1\t\xc3": "b is not UTF-8",
    b"1\ta\0": "b holds a NUL byte",
    b"\0\ta": "a is not an integer of at most 18 digits",
    b"1\t" + b"z" * (1 << 23): "the line is too long to be a row",
}
"""The flaw of a line, None for a good one."""
SHORT = [line for line in WRONG if len(line) < 70_000]


def test_damaged_lines_are_reported_by_number_and_nothing_else_is_lost(tmp_path: Path) -> None:
    expected = [(number, reason) for number, reason in enumerate(WRONG.values(), 1) if reason]
    for end in (b"\n", b""):
        assert bad_rows(tmp_path / "t", PAIRS, b"\n".join(WRONG) + end) == expected
    (tmp_path / "t.gz").write_bytes(gzip.compress(b"\n".join(WRONG)))
    bad = BadRows(99)
    rows = sum(block.table({"a": block.ids("a")}).num_rows for block in blocks_of(tmp_path / "t.gz", PAIRS, bad))
    assert [(row.line, row.reason) for row in bad.first()] == expected
    assert rows == 2


@settings(max_examples=50)
@given(st.lists(st.sampled_from(SHORT), max_size=40), st.lists(st.integers(1, 200), max_size=3))
def test_lines_are_right_in_every_part(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("text") / "t"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    bad = BadRows(1000)
    rows = 0
    bounds = [0, *sorted(cuts), None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", 16)
        for start, stop in pairwise(bounds):
            for block in read_blocks(path, PAIRS, PartLog(bad, lambda nbytes: None), start or 0, stop):
                rows += int(block.good.sum())
    expected = [(number, reason) for number, line in enumerate(lines, 1) if (reason := WRONG[line])]
    assert bad.count == len(expected)
    assert [(row.line, row.reason) for row in bad.first()] == expected[:SHOWN]
    assert rows == sum(line in (b"1\tx", b"1\tx\r") for line in lines)


def test_a_header_must_name_the_columns(tmp_path: Path) -> None:
    format = TextFormat({"a": INTEGER, "b": TEXT}, delimiter=",", header=True)
    path = tmp_path / "t.csv"
    path.write_bytes('\ufeff"a",b\r\n1,x\r\n'.encode())
    table = read_table(path, format, lambda block: block.table({"a": block.integers("a")}), BadRows(0))
    assert table.column("a").to_pylist() == [1]
    path.write_text("b,a\n1,x\n")
    with pytest.raises(DataError, match="its first line should name the columns a,b, but says b,a"):
        text_parts(path, format, lambda block: block)
    path.write_bytes(b"a,b\nx,x\n")
    with pytest.raises(DataError, match=r"t\.csv line 2: a is not an integer"):
        blocks_of(path, format, BadRows(0))


def test_large_files_become_several_parts_unless_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 10)
    path = tmp_path / "big.txt"
    path.write_text("".join(f"{number}\tx\n" for number in range(10)))
    packed = tmp_path / "small.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))

    def numbers(file: Path) -> dict[str, list[int]]:
        found = text_parts(file, PAIRS, lambda block: block.integers("a").tolist())
        assert sum(part.source_bytes for part in found) == file.stat().st_size
        log = PartLog(BadRows(0), lambda nbytes: None)
        return {part.name: [number for table in part.tables(log) for number in table] for part in found}

    assert numbers(path) == {"big-0000": [0, 1, 2], "big-0001": [3, 4], "big-0002": [5, 6, 7], "big-0003": [8, 9]}
    assert numbers(packed) == {"small-0000": list(range(10))}


def test_too_many_bad_rows_end_reading_and_name_the_first_lines(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("1\t2\n3\n4\t5\n" + "x\t1\n" * 100_000)
    with pytest.raises(DataError) as caught:
        blocks_of(path, PAIRS, BadRows(2))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("100001 rows do not parse, but at most 2 may fail")
    assert lines[1] == "  t line 2: 1 field where there are 2 columns: 3"
    assert lines[2].startswith("  t line 4: a is not")
    assert (len(lines), lines[-1]) == (2 + SHOWN, "  and 99981 more so far")


def test_damaged_archives_and_missing_files_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    packed = gzip.compress("".join(f"{a}\t{b}\n" for a, b in rng.integers(0, 10**9, (2000, 2))).encode())
    path = tmp_path / "t.gz"
    for damaged in (packed[: len(packed) // 2], packed[:100] + b"\0" * 50 + packed[150:], b"no gzip at all"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"t\.gz"):
            blocks_of(path, PAIRS, BadRows(0))
    with pytest.raises(DataError, match="gone"):
        blocks_of(tmp_path / "gone", PAIRS, BadRows(0))
