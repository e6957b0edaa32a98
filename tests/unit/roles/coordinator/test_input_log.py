"""The log of a coordinator: what was written is read, half a record at the end is not, and damage is refused."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from persia_cli.errors import TakeoverError, UserError
from persia_cli.observe.record_snapshot import EncodedScores, RecordSnapshot
from persia_cli.roles.coordinator.input_log import (
    GivenUp,
    Input,
    InputLog,
    Judged,
    SaveIsDue,
    SignalCame,
    request_of,
)
from persia_cli.wire.figures import IntervalFigures
from persia_cli.wire.job_messages import Report, ScoreCounts, TakeItem
from persia_cli.wire.message import Sender, TableTotals
from persia_cli.wire.server import Peer

JOB = b"this job"
PEER = Peer(b"data-loader-0#7", 12)
TAKE = TakeItem(Sender("data-loader", 0, 1), 0, 5)
NONE = EncodedScores(b"", b"", bytes(32))
NUMBER = msgspec.msgpack.Decoder(int)


def report(number: int) -> Report:
    figures = IntervalFigures("train", number, samples=1, steps=1, staleness={}, seconds=0.1, loss_sums=(0.5,))
    scores = ScoreCounts(np.array([3], np.uint64), np.array([1.0]), np.zeros((1, 7)))
    return Report(Sender("nn-worker", 0, 1), number, figures, scores, None)


def written(path: Path) -> list[object]:
    """A log with one record of each kind; returns what a replay of it gives."""
    log = InputLog(path, JOB, 5)
    assert log.find(NUMBER, lambda: 41) == 41
    log.take(PEER, TAKE, synced=False)
    log.note(SignalCame("SIGUSR2"))
    log.note(SaveIsDue())
    log.note(Judged({"step": 3, "loss": 0.5}))
    log.note(GivenUp("a reason", 2))
    log.close(ended=False)
    return ["TakeItem", "SIGUSR2", "due", 3, "a reason"]


def replayed(path: Path) -> list[object]:
    log = InputLog(path, JOB, again=True)
    assert log.metrics_bytes == 5
    if log._entries:
        assert log.find(NUMBER, lambda: 99) == 41
    seen: list[object] = []
    for entry in log.replay():
        match entry:
            case Input():
                assert request_of(entry) == (PEER, TAKE)
                seen.append("TakeItem")
            case SignalCame():
                seen.append(entry.name)
            case SaveIsDue():
                seen.append("due")
            case Judged():
                seen.append(entry.line["step"])
            case GivenUp():
                seen.append(entry.text)
    log.close(ended=False)
    return seen


def test_what_was_written_is_read_and_the_clock_goes_on(tmp_path: Path) -> None:
    expected = written(tmp_path / "log")
    assert replayed(tmp_path / "log") == expected
    log = InputLog(tmp_path / "log", JOB, again=True)
    log.find(NUMBER, lambda: 0)
    clocks = [entry.clock_s for entry in log.replay() if not isinstance(entry, Judged)]
    assert clocks == sorted(clocks)
    assert log.clock() >= clocks[-1]
    log.close(ended=True)
    assert not (tmp_path / "log").exists()


def test_a_log_that_ends_anywhere_is_read_up_to_there(tmp_path: Path) -> None:
    expected = written(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    InputLog(tmp_path / "first", JOB, 5).close(ended=False)
    lengths, first = set(), (tmp_path / "first").stat().st_size
    for size in range(len(content)):
        (tmp_path / "log").write_bytes(content[:size])
        if size < first:
            with pytest.raises(TakeoverError, match="is empty"):
                replayed(tmp_path / "log")
            continue
        seen = replayed(tmp_path / "log")
        assert seen == expected[: len(seen)]
        lengths.add(len(seen))
        assert (tmp_path / "log").stat().st_size <= size
    assert lengths == {0, 1, 2, 3, 4}


def test_a_damaged_byte_is_never_followed(tmp_path: Path) -> None:
    """In the last record it looks like half a record, which nobody was answered; before that it is refused."""
    expected = written(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    refused = 0
    for at in range(len(content)):
        (tmp_path / "log").write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
        try:
            assert replayed(tmp_path / "log") == expected[:-1]
        except TakeoverError:
            refused += 1
    assert refused > 0.7 * len(content)


@pytest.mark.parametrize(
    ("content", "text"), [(b"", "is empty"), (b"\0" * 64, "is damaged at byte 0"), (None, "is missing")]
)
def test_a_log_that_says_nothing_is_refused(tmp_path: Path, content: bytes | None, text: str) -> None:
    if content is not None:
        (tmp_path / "log").write_bytes(content)
    with pytest.raises(TakeoverError, match=text):
        InputLog(tmp_path / "log", JOB, again=True)


def test_the_log_of_another_job_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "log")
    with pytest.raises(TakeoverError, match="is the log of another job"):
        InputLog(tmp_path / "log", b"another job", again=True)


def test_what_was_found_is_not_looked_for_again(tmp_path: Path) -> None:
    log = InputLog(tmp_path / "log", JOB)
    assert [log.find(NUMBER, lambda n=n: n) for n in (1, 2)] == [1, 2]
    log.close(ended=False)
    again = InputLog(tmp_path / "log", JOB, again=True)
    assert [again.find(NUMBER, lambda n=n: n) for n in (7, 8, 9)] == [1, 2, 9]
    again.close(ended=False)
    third = InputLog(tmp_path / "log", JOB, again=True)
    assert [third.find(NUMBER, lambda: 0) for _ in range(3)] == [1, 2, 9]
    third.close(ended=False)


def test_a_search_that_failed_fails_again(tmp_path: Path) -> None:
    log = InputLog(tmp_path / "log", JOB)
    log.note(GivenUp("no such folder", 2))
    log.close(ended=False)
    again = InputLog(tmp_path / "log", JOB, again=True)
    with pytest.raises(UserError, match="no such folder"):
        again.find(NUMBER, lambda: 1)
    assert [type(entry) for entry in again.replay()] == [GivenUp]
    again.close(ended=False)


def test_a_finding_in_the_wrong_place_is_refused(tmp_path: Path) -> None:
    log = InputLog(tmp_path / "log", JOB)
    log.find(NUMBER, lambda: 1)
    log.take(PEER, TAKE, synced=True)
    log.close(ended=False)
    again = InputLog(tmp_path / "log", JOB, again=True)
    with pytest.raises(TakeoverError, match="Finding comes too early"):
        list(again.replay())
    again.close(ended=False)


def test_compaction_keeps_all_but_the_reports_that_are_in_the_record(tmp_path: Path) -> None:
    log = InputLog(tmp_path / "log", JOB, 5)
    log.find(NUMBER, lambda: 41)
    for number in range(1, 9):
        log.take(Peer(b"nn-worker-0#1", number), report(number), synced=True)
        log.take(Peer(PEER.identity, number), TAKE, synced=False)
    before = (tmp_path / "log").stat().st_size
    state = RecordSnapshot(7, 6, 6, 0, 0, (), TableTotals(), [], NONE, [], [], NONE, 77)
    log.compact(state)
    log.take(Peer(PEER.identity, 9), TAKE, synced=False)
    log.close(ended=False)
    assert (tmp_path / "log").stat().st_size < before
    again = InputLog(tmp_path / "log", JOB, again=True)
    assert (again.snapshot, again.metrics_bytes) == (state, 77)
    assert again.find(NUMBER, lambda: 0) == 41
    entries = [entry for entry in again.replay() if isinstance(entry, Input)]
    assert [entry.report for entry in entries if entry.report] == [7, 8]
    assert len(entries) == 2 + 9
    again.close(ended=True)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_many_compactions_keep_what_one_would(tmp_path: Path) -> None:
    """Some reports are not in the record yet at the first, so it ends before them, and they go at a later one."""
    found: list[list[tuple[int, int]]] = []
    for name, every in (("often", 3), ("once", 12)):
        log = InputLog(tmp_path / name, JOB)
        for number in range(1, 13):
            log.take(Peer(PEER.identity, number), TAKE, synced=False)
            log.take(Peer(b"nn-worker-0#1", number), report(number), synced=False)
            if number % every == 0:
                log.compact(RecordSnapshot(number - 1, 6, 6, 0, 0, (), TableTotals(), [], NONE, [], [], NONE, 77))
        log.close(ended=False)
        again = InputLog(tmp_path / name, JOB, again=True)
        assert again.snapshot is not None
        assert again.snapshot.next_report == 11
        found.append([(entry.report, len(entry.frames)) for entry in again.replay() if isinstance(entry, Input)])
        again.close(ended=False)
    assert found[0] == found[1]
    assert [number for number, _ in found[0] if number] == [11, 12]
    assert (tmp_path / "often").read_bytes()[:40] == (tmp_path / "once").read_bytes()[:40]


def test_nothing_is_kept_without_a_path() -> None:
    log = InputLog()
    log.take(PEER, TAKE, synced=True)
    log.note(SaveIsDue())
    assert log.find(NUMBER, lambda: 3) == 3
    assert not log.again
    log.close(ended=True)
