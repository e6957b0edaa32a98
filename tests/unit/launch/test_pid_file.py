"""The file of a supervisor: who is killed with it is known to the next one, who ends by itself is not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from persia_cli.errors import DiskError, UserError
from persia_cli.launch import pid_file
from persia_cli.launch.pid_file import Noted, PidFile
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
