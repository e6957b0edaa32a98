"""Journals: one object a line, read while they are written."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.errors import DiskError
from persia_cli.observe.journal import WAITING_BYTES, Journal, Tail, drop_half_a_line, read_journal
from tests.support.full_disk import leave_free, small_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The future path of a journal."""
    return tmp_path / "events.jsonl"


def test_a_line_is_there_as_soon_as_it_is_written(path: Path) -> None:
    journal = Journal(path)
    journal.write(event="ready", replicas=["a", "b"], text="größer\nals")
    (line,) = path.read_text(encoding="utf-8").splitlines()
    written = json.loads(line)
    assert list(written) == ["time", "event", "replicas", "text"]
    assert written.pop("time") > 1.7e9
    assert written == {"event": "ready", "replicas": ["a", "b"], "text": "größer\nals"}
    journal.close()


def test_numbers_that_are_not_finite_become_null_at_any_depth(path: Path) -> None:
    journal = Journal(path)
    journal.write(a=math.nan, b=-math.inf, c=1.5, d={"e": math.inf, "f": [math.nan, 2.5, (math.nan,)]}, g=None)
    journal.close()
    (line,) = read_journal(path)
    del line["time"]
    assert line == {"a": None, "b": None, "c": 1.5, "d": {"e": None, "f": [None, 2.5, [None]]}, "g": None}


def test_a_journal_that_is_not_there_yet_has_no_lines(path: Path) -> None:
    tail = Tail(path)
    assert list(tail.new()) == read_journal(path) == []
    path.write_text('{"a": 1}\n')
    assert list(tail.new()) == [{"a": 1}]


@settings(deadline=None)
@given(st.lists(st.text(max_size=8), max_size=5), st.data())
def test_half_a_line_waits_wherever_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "events.jsonl"
    lines = [json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in texts]
    whole = b"".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    tail, found = Tail(path), []
    for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        with path.open("ab") as file:
            file.write(whole[start:stop])
        found += [line["text"] for line in tail.new()]
        assert found == texts[: whole[:stop].count(b"\n")]
    assert found == texts


def write_many(journal: Journal, lines: int, size: int = 700) -> None:
    for number in range(lines):
        journal.write(number=number, text="x" * size)


def test_lines_wait_in_order_until_the_disk_has_space() -> None:
    with small_disk(2**16) as disk:
        filler, path = leave_free(disk, 2**14), disk / "events.jsonl"
        journal = Journal(path)
        write_many(journal, 50)
        assert 0 < len(read_journal(path)) < 50
        assert path.read_bytes().endswith(b"\n")
        filler.unlink()
        journal.flush()
        assert [line["number"] for line in read_journal(path)] == list(range(50))
        assert journal.nbytes == path.stat().st_size
        journal.close()


def test_lines_that_wait_are_bounded_and_not_lost_silently() -> None:
    with small_disk(2**14) as disk:
        journal = Journal(disk / "events.jsonl")
        with pytest.raises(DiskError, match=r"^disk full: cannot write ") as full:
            write_many(journal, 17, WAITING_BYTES // 16)
        assert full.value.exit_code == 1
        with pytest.raises(DiskError, match=r"^disk full: cannot write "):
            journal.close()


def test_an_incomplete_line_of_a_killed_writer_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "ready"}\n{"event": "pha')
    drop_half_a_line(path)
    journal = Journal(path)
    journal.write(event="phase", phase="failed")
    journal.close()
    assert [line["event"] for line in read_journal(path)] == ["ready", "phase"]
    drop_half_a_line(path)
    assert len(read_journal(path)) == 2
