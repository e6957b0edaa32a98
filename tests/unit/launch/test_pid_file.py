"""The file of a supervisor: who is killed with it is known to the next one, who ends by itself is not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from persia_cli.errors import DiskError, UserError
from persia_cli.launch import pid_file
from persia_cli.launch.pid_file import Noted, PidFile, noted_in
from persia_cli.launch.supervisor import END_NOW
from persia_cli.wire.keys import new_keys, write_keys
from persia_cli.wire.parts import ProcessId
from tests.conftest import poll_for

HERE, ELSEWHERE = "tcp://127.0.0.1:7", "tcp://127.0.0.1:8"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pid"


def test_a_process_that_was_noted_and_not_cleared_was_killed(file: Path) -> None:
    first = PidFile.locked(file, "data-loader-0")
    assert first.killed(HERE) is None
    first.note(HERE, ProcessId(123456, 2**40, "0f" * 8), 11)
    first.note(HERE, ProcessId(7, 5), 2)
    first.close()
    second = PidFile.locked(file, "data-loader-0")
    assert second.killed(HERE) == Noted(HERE, ProcessId(7, 5), 2)
    assert second.killed(ELSEWHERE) is None  # another job's
    second.clear()
    third = PidFile.locked(file, "data-loader-0")
    assert third.killed(HERE) is None
    third.close()


def test_the_lock_is_held_until_the_process_that_inherited_it_has_died(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pid_file, "LOCKED_S", 0.2)
    first = PidFile.locked(file, "data-loader-0")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[first.descriptor])
    first.close()
    try:
        with pytest.raises(UserError, match=f"--pid-file {file}: data-loader-0 is running here already"):
            PidFile.locked(file, "data-loader-0")
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    PidFile.locked(file, "data-loader-0").clear()


def test_who_comes_early_waits_for_the_lock(file: Path) -> None:
    first = PidFile.locked(file, "data-loader-0")
    lines = f"from persia_cli.launch.pid_file import *; print(0, flush=True); PidFile.locked(Path({str(file)!r}), 'x')"
    waiting = subprocess.Popen([sys.executable, "-c", lines], stdout=subprocess.PIPE)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == b"0\n"
    assert waiting.poll() is None
    first.clear()
    poll_for(lambda: waiting.poll() == 0, 30.0, "the lock")
    waiting.stdout.close()


@pytest.mark.parametrize("content", [b"", b"7", b'{"coordinator":"tcp://127.0.0.1:7"', b"\xff" * 5000])
def test_what_is_no_note_says_nothing(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    locked = PidFile.locked(file, "x")
    assert locked.killed(HERE) is None
    locked.close()


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=f"cannot write {tmp_path}/none/pid"):
        PidFile.locked(tmp_path / "none" / "pid", "x")


def test_a_link_in_its_place_is_not_followed(file: Path, tmp_path: Path) -> None:
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiskError):
        PidFile.locked(file, "data-loader-0")
    assert not (tmp_path / "elsewhere").exists()


def test_the_file_of_another_user_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.touch()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(UserError, match=f"^--pid-file {file} belongs to another user"):
        PidFile.locked(file, "data-loader-0")


def hears(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:")]
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.processes
def test_a_supervisor_that_is_to_end_at_once_ends_its_process_and_leaves_nothing(file: Path, tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", new_keys())
    words = [
        "data-loader",
        "--index",
        "0",
        "--coordinator",
        "tcp://127.0.0.1:9",
        "--key-file",
        str(tmp_path / "keys"),
        "--supervise",
    ]
    supervisor = subprocess.Popen([sys.executable, "-m", "persia_cli", "launch-role", *words, "--pid-file", str(file)])
    try:
        poll_for(lambda: file.exists() and noted_in(file.read_bytes()), 60.0, "a note of the process")
        poll_for(lambda: hears(supervisor.pid, END_NOW), 20.0, "a supervisor that heeds signals")
        [child] = psutil.Process(supervisor.pid).children()
        supervisor.send_signal(END_NOW)
        poll_for(lambda: supervisor.poll() is not None, 20.0, "the end of the supervisor")
    finally:
        supervisor.kill()
        supervisor.wait()
    assert supervisor.returncode > 0
    assert not child.is_running()
    assert not file.exists()
