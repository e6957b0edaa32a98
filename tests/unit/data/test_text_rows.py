"""Rows of CSV with quotes: each once and whole, however the file is read, and with its line."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.data.read import text
from persia_cli.data.read.bad_rows import BadRows
from persia_cli.data.read.text import Layout, TextFile, read_rows, texts_of
from persia_cli.errors import DataError

QUOTED = Layout(delimiter=",", quote='"', spanning=True, blank_lines=True)
FIELDS = st.lists(st.sampled_from(["a", "b", '"', ",", " ", "\n", "\r\n"]), max_size=4).map("".join)


def read(path: Path, block_bytes: int) -> tuple[list[tuple[Any, ...]], BadRows]:
    """The line and the two fields of each row, and the rows that cannot be read."""
    bad, found = BadRows(99), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", block_bytes)
        for rows in read_rows(TextFile(str(path)), QUOTED, lambda *each: bad.reject(path, 0, *each)):
            lines, columns = texts_of(rows, QUOTED, 2, range(2), lambda *each: bad.reject(path, 0, *each))
            found += list(zip(lines.tolist(), *(column.to_pylist() for column in columns), strict=True))
    return found, bad


@given(st.lists(st.lists(FIELDS, min_size=2, max_size=3), max_size=8), st.integers(8, 40))
@settings(max_examples=100)
def test_fields_and_lines_are_those_of_pythons_reader(
    tmp_path_factory: pytest.TempPathFactory, table: list[list[str]], block: int
) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerows(table)
    path = tmp_path_factory.mktemp("rows") / "t.csv"
    path.write_text(file.getvalue(), newline="")
    found, bad = read(path, 8 * block)
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
            read(path, 8)
    path.write_bytes(b'a,5"\n"c"d,e\n"f",g\n')
    found, bad = read(path, 8)
    assert [fields for _, *fields in found] == [["a", '5"'], ["f", "g"]]
    assert [str(row) for row in bad.found] == ["line 2: a quote is not closed where its field ends"]
