"""What a machine reports of a job, and the copy of it at the other end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from persia_cli.engines.background import KILLED, note_process, recorded_exit
from persia_cli.engines.hosts import session as sessions
from persia_cli.engines.hosts.mirror import Mirror
from persia_cli.engines.hosts.session import PORTION, FollowedFile, HostSession, run_session
from persia_cli.errors import UserError
from tests.conftest import poll_for

NAME = "nn-worker-0"
COORDINATOR = "coordinator-0"


class Ends:
    """A machine's files and the copy of them."""

    def __init__(self, folder: Path) -> None:
        self.start, self.run, self.copy = folder / "job" / "start-1", folder / "job" / "run", folder / "copy"
        for made in (self.start, self.run, self.copy):
            made.mkdir(parents=True)
        self.mirror = Mirror(self.copy, [NAME, COORDINATOR])

    def session(self) -> HostSession:
        return HostSession(self.start, self.mirror.replicas, self.mirror.known)

    def bring(self, session: HostSession) -> list[dict[str, object]]:
        """Copy what is new, and return what else there is."""
        lines = json.loads(json.dumps(list(session.news())))
        for line in lines:
            if "file" in line:
                self.mirror.take(line)
        return [line for line in lines if "file" not in line]


@pytest.fixture
def ends(tmp_path: Path) -> Ends:
    return Ends(tmp_path)


@pytest.fixture
def process(ends: Ends) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that stands for the supervisor of a replica."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        note_process(ends.start, NAME, started.pid)
        (ends.start / f"{NAME}.log").write_bytes(b"begun \xc3")
        yield started


def test_a_copy_gets_what_was_appended_also_within_a_letter_and_over_a_new_connection(
    ends: Ends, process: "subprocess.Popen[bytes]"
) -> None:
    session = ends.session()
    assert ends.bring(session) == [{"replica": NAME}]
    with (ends.start / f"{NAME}.log").open("ab") as log:
        log.write(b"\xa4\n")
    assert ends.bring(ends.session()) == [{"replica": NAME}]
    assert (ends.copy / "roles" / f"{NAME}.log").read_text() == "begun ä\n"
    assert list(FollowedFile(ends.start / f"{NAME}.log", "x", *ends.mirror.known[f"roles/{NAME}.log"]).news()) == []


def test_a_file_that_is_replaced_or_cut_is_copied_anew(ends: Ends) -> None:
    metrics = ends.run / "metrics.jsonl"
    metrics.write_text("1\n2\n3\n")
    session = ends.session()
    ends.bring(session)
    os.truncate(metrics, 2)
    ends.bring(session)
    assert (ends.copy / "metrics.jsonl").read_text() == "1\n"
    other = ends.run / "other"
    other.write_text("8\n9\n")
    other.replace(metrics)
    ends.bring(session)
    assert (ends.copy / "metrics.jsonl").read_text() == "8\n9\n"


def test_much_comes_in_portions(ends: Ends) -> None:
    whole = os.urandom(2 * PORTION + 5)
    (ends.run / "metrics.jsonl").write_bytes(whole)
    ends.bring(ends.session())
    assert (ends.copy / "metrics.jsonl").read_bytes() == whole


def test_the_coordinator_s_address_is_known_but_nowhere_in_the_copy(ends: Ends) -> None:
    (ends.run / "coordinator.address").write_text("tcp://10.0.0.1:7000\n")
    (ends.start / f"{COORDINATOR}.log").write_text("listening at tcp://10.0.0.1:7000\n")
    ends.bring(ends.session())
    assert ends.mirror.address == "tcp://10.0.0.1:7000"
    assert not (ends.copy / "coordinator.address").exists()


def test_what_a_killed_coordinator_has_left_is_not_taken_for_that_of_this_start(ends: Ends) -> None:
    (ends.run / "coordinator.address").write_text("tcp://10.0.0.1:6999\n")
    (ends.run / "events.jsonl").write_text("failed\n")
    (ends.start / f"{COORDINATOR}.log").write_text("reading the data\n")
    session = ends.session()
    ends.bring(session)
    assert ends.mirror.address == ""
    assert not (ends.copy / "events.jsonl").exists()
    (ends.run / "events.jsonl").write_text("began\n")
    (ends.run / "coordinator.address").write_text("tcp://10.0.0.1:7000\n")
    (ends.start / f"{COORDINATOR}.log").write_text("reading the data\nlistening at tcp://10.0.0.1:7000\n")
    ends.bring(session)
    assert ends.mirror.address == "tcp://10.0.0.1:7000"
    assert (ends.copy / "events.jsonl").read_text() == "began\n"


def test_nothing_is_copied_to_places_that_the_machine_has_no_say_in(ends: Ends) -> None:
    for name in ("../outside", "roles/../../outside", "roles/embedding-server-0.log", "/tmp/outside", "token"):
        ends.mirror.take({"file": name, "inode": 1, "at": 0, "data": "x"})
    assert list(ends.copy.rglob("*")) == []
    assert not (ends.copy.parent / "outside").exists()


def test_the_end_of_a_replica_comes_once_and_after_its_last_words(
    ends: Ends, process: "subprocess.Popen[bytes]"
) -> None:
    session = ends.session()
    ends.bring(session)
    with (ends.start / f"{NAME}.log").open("ab") as log:
        log.write(b"last words")
    (ends.start / f"{NAME}.end").write_text("2\n")
    process.communicate(b"\n")
    lines = list(session.news())
    assert [line for line in lines if "file" not in line] == [{"ended": NAME, "code": 2}]
    assert lines[-1] == {"ended": NAME, "code": 2}
    assert list(session.news()) == []


def test_signals_reach_the_process_and_one_that_left_no_exit_code_was_killed(
    ends: Ends, process: "subprocess.Popen[bytes]"
) -> None:
    session = ends.session()
    ends.bring(session)
    assert session.obey({}) is None
    assert session.obey(order(1, "SIGKILL", NAME, "nn-worker-9")) == {"obeyed": 1}
    poll_for(lambda: process.poll() == -signal.SIGKILL, 10.0, "the end of the process")
    assert ends.bring(session) == [{"ended": NAME, "code": KILLED}]


def test_an_order_is_obeyed_once_however_many_sessions_hear_it(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, int]] = []
    monkeypatch.setattr(sessions, "send_signal", lambda start, name, number: sent.append((name, number)))
    for _ in range(2):
        each = ends.session()
        for number, name in ((1, "SIGUSR1"), (2, "SIGTERM"), (1, "SIGUSR1")):
            assert each.obey(order(number, name, NAME, COORDINATOR)) == {"obeyed": number}
        assert each.obey(order(1, "SIGINT", NAME, of="another")) == {"obeyed": 1}
    both = [(name, number) for number in (signal.SIGUSR1, signal.SIGTERM) for name in (NAME, COORDINATOR)]
    assert sent == [*both, (NAME, signal.SIGINT)]
    (ends.start / sessions.OBEYED).write_text("[")  # cut off by a loss of power
    ends.session().obey(order(3, "SIGTERM", NAME))
    ends.session().obey(order(3, "SIGTERM", NAME))
    assert sent[5:] == [(NAME, signal.SIGTERM)]


def test_an_order_is_obeyed_where_that_cannot_be_noted(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(sessions, "send_signal", lambda start, name, number: sent.append(name))
    (ends.start / sessions.OBEYED).mkdir()
    session = ends.session()
    for _ in range(2):
        assert session.obey(order(1, "SIGTERM", NAME)) == {"obeyed": 1}
    assert sent == [NAME]


def test_what_is_to_end_before_it_was_started_is_cancelled_and_nothing_else_is(ends: Ends) -> None:
    nowhere = HostSession(ends.start.parent / "start-2", [NAME], {})
    assert nowhere.obey(order(1, "SIGUSR1", NAME)) == {"obeyed": 1}
    assert list(nowhere.news()) == []
    assert nowhere.obey(order(2, "SIGINT", NAME, COORDINATOR)) == {"obeyed": 2}
    assert list(nowhere.news()) == [{"cancelled": NAME}], "the other one is not of this machine"
    assert list(nowhere.news()) == []
    assert list(HostSession(ends.start.parent / "start-2", [NAME], {}).news()) == [{"cancelled": NAME}]


def order(number: int, name: str, *replicas: str, of: str = "this end") -> dict[str, object]:
    return {"from": of, "number": number, "signal": name, "to": list(replicas)}


def test_a_number_that_another_process_has_by_now_is_not_the_replica(ends: Ends) -> None:
    (ends.start / f"{NAME}.process").write_text(json.dumps({"pid": os.getpid(), "began": 1}))
    session = ends.session()
    session.obey(order(1, "SIGKILL", NAME))
    assert {"ended": NAME, "code": KILLED} in ends.bring(session)


def test_of_a_folder_that_machines_share_each_reports_its_own_replicas(ends: Ends) -> None:
    for name in (NAME, COORDINATOR):
        note_process(ends.start, name, os.getpid())
        (ends.start / f"{name}.log").write_text("begun\n")
    (ends.start / "embedding-server-0.process").write_text(json.dumps({"pid": 2**22 + 1, "began": 1}))
    (ends.run / "metrics.jsonl").write_text("{}\n")
    lines = [list(HostSession(ends.start, [name], {}).news()) for name in (NAME, COORDINATOR)]
    assert [[line for line in each if "file" not in line] for each in lines] == [
        [{"replica": NAME}],
        [{"replica": COORDINATOR}],
    ]
    logs = [f"roles/{name}.log" for name in (NAME, COORDINATOR)]
    assert [{line["file"] for line in each if "file" in line} for each in lines] == [
        {logs[0]},
        {logs[1], "metrics.jsonl"},
    ]


def test_a_session_ends_with_its_input_and_says_when_it_has_caught_up(
    ends: Ends, capsys: pytest.CaptureFixture[str]
) -> None:
    (ends.run / "metrics.jsonl").write_text("{}\n")
    reading, writing = os.pipe()
    os.write(writing, b'{"replicas": ["coordinator-0"], "known": {}}\n{}\n')
    os.write(writing, b'{"from": "a", "number": 4, "signal": "SIGTERM", "to": []}\n')
    os.close(writing)
    with os.fdopen(reading, "rb") as source:
        run_session(ends.start, source)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert list(lines[0]["facts"]) == ["version", "host", "address", "memory", "processors"]
    assert lines[1:] == [
        {"file": "metrics.jsonl", "inode": (ends.run / "metrics.jsonl").stat().st_ino, "at": 0, "data": ""},
        {"file": "metrics.jsonl", "inode": (ends.run / "metrics.jsonl").stat().st_ino, "at": 0, "data": "{}\n"},
        {"caught_up": True},
        {"obeyed": 4},
    ]


@pytest.mark.parametrize(("error", "code"), [(UserError("x"), 2), (SystemExit(75), 75), (ValueError("x"), 1)])
def test_an_exit_code_is_kept(error: BaseException, code: int, tmp_path: Path) -> None:
    with pytest.raises(type(error)), recorded_exit(tmp_path / "end"):
        raise error
    assert (tmp_path / "end").read_text() == f"{code}\n"
