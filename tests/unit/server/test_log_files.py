"""Nothing of a damaged hidden file becomes a row that nobody has written, and no other file waits for it."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.server import log_files as module
from persia_cli.server.log_files import PENDING, PREFIX, PendingFile, publish_abandoned

SCHEMA = pa.schema([("text", pa.string()), ("ids", pa.list_(pa.uint64()))])
DAMAGED, WHOLE = f"{PREFIX}a{PENDING}", f"{PREFIX}b{PENDING}"


def rows(number: int) -> list[dict[str, Any]]:
    return [{"text": f"{number}", "ids": [1, 2]}, {"text": None, "ids": None}, {"text": "", "ids": [number]}]


ROWS = [rows(number) for number in range(3)]
OTHER = rows(9)


def content(folder: Path, requests: list[list[dict[str, Any]]]) -> tuple[bytes, list[int]]:
    """A hidden file's bytes, and where each request ends."""
    pending = PendingFile(folder, SCHEMA)
    ends = []
    for each in requests:
        pending.append(pa.RecordBatch.from_pylist(each, SCHEMA))
        ends.append(pending.path.stat().st_size)
        assert pending.size == ends[-1]
    pending.close()
    found = pending.path.read_bytes()
    pending.path.unlink()
    return found, ends


def published(folder: Path, damaged: bytes) -> tuple[list[list[dict[str, Any]]], int]:
    """What is made of a damaged file, in requests, and the bytes of it that are lost; a whole one is beside it."""
    for path in folder.iterdir():
        path.unlink()
    (folder / DAMAGED).write_bytes(damaged)
    (folder / WHOLE).write_bytes(content(folder, [OTHER])[0])
    first, second = publish_abandoned(folder)
    assert (first.error, second.rows, second.lost, second.error) == (None, 3, 0, None)
    assert {path.suffix for path in folder.iterdir()} == {".parquet"}
    tables = {path.stem[-1]: pq.read_table(path).to_pylist() for path in folder.iterdir()}
    assert tables["b"] == OTHER
    found = tables.get("a", [])
    assert len(found) == first.rows
    return [found[at : at + 3] for at in range(0, len(found), 3)], first.lost


def test_a_file_that_ends_anywhere_gives_what_is_whole(tmp_path: Path) -> None:
    whole, ends = content(tmp_path, ROWS)
    for size in range(0, len(whole) + 1, 37):
        kept = sum(size >= end for end in ends)
        assert published(tmp_path, whole[:size])[0] == ROWS[:kept]


def test_zeros_of_a_power_cut_are_no_rows(tmp_path: Path) -> None:
    whole, ends = content(tmp_path, ROWS)
    size = len(whole)
    for begin in (0, ends[0], ends[0] + 5, (ends[1] + ends[2]) // 2, size - 64):
        found, lost = published(tmp_path, whole[:begin] + bytes(size - begin) + bytes(4096))
        kept = sum(begin >= end for end in ends)
        assert (found, lost) == (ROWS[:kept], size + 4096 - (ends[kept - 1] if kept else 0))
    page = whole[: ends[0] + 100] + bytes(50) + whole[ends[0] + 150 :]
    assert published(tmp_path, page) == ([ROWS[0], ROWS[2]], ends[1] - ends[0])


def test_flipped_bits_cost_the_requests_that_have_them_and_nothing_else(tmp_path: Path) -> None:
    whole, ends = content(tmp_path, ROWS)
    draw = random.Random(5)
    for _ in range(100):
        damaged, flips = bytearray(whole), draw.sample(range(8 * len(whole)), draw.choice((1, 1, 2, 20)))
        for bit in flips:
            damaged[bit // 8] ^= 1 << bit % 8
        found, lost = published(tmp_path, bytes(damaged))
        assert lost > 0
        assert len(found) < 3
        assert all(each in ROWS for each in found)
        first = min(flips) // 8
        assert found[: sum(first >= end for end in ends)] == ROWS[: sum(first >= end for end in ends)]


def test_a_file_that_cannot_be_published_stays_and_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / DAMAGED).write_bytes(content(tmp_path, ROWS)[0])
    (tmp_path / WHOLE).write_bytes(content(tmp_path, [OTHER])[0])
    write = module._write

    def fails(path: Path, table: Any) -> None:
        if table.num_rows == 9:
            raise pa.ArrowInvalid("no such form")
        write(path, table)

    monkeypatch.setattr(module, "_write", fails)
    first, second = publish_abandoned(tmp_path)
    assert (first.rows, type(first.error), second.rows) == (0, pa.ArrowInvalid, 3)
    monkeypatch.undo()
    assert [(each.rows, each.error) for each in publish_abandoned(tmp_path)] == [(9, None)]
    assert len(list(tmp_path.glob("*.parquet"))) == 2


def test_what_has_its_sum_and_is_no_batch_is_lost(tmp_path: Path) -> None:
    pending = PendingFile(tmp_path, SCHEMA)
    pending.append(pa.RecordBatch.from_pylist(ROWS[0], SCHEMA))
    strange = pending._write(pa.py_buffer(b"no message of Arrow" * 10))
    pending.append(pa.RecordBatch.from_pylist(ROWS[1], SCHEMA))
    damaged = pending.path.read_bytes()
    pending.close()
    assert published(tmp_path, damaged) == (ROWS[:2], strange)
