"""Replicas in the background: whoever ends a job finds each of them, or it is never started."""

import signal
import subprocess
import threading
from pathlib import Path

import pytest

from persia_cli.engines import background
from persia_cli.engines.background import (
    KILLED,
    alone_in,
    cancel,
    exit_code,
    recorded_exit,
    replicas_in,
    start_in_background,
)
from persia_cli.engines.hosts.session import HostSession
from persia_cli.engines.role_options import RoleOptions
from persia_cli.errors import DiskError, RoleError, UserError
from tests.conftest import poll_for
from tests.support.full_disk import leave_free, small_disk

NAME = "data-loader-0"


@pytest.fixture
def options() -> RoleOptions:
    return RoleOptions("data-loader", 0, "tcp://127.0.0.1:1")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> "list[subprocess.Popen[bytes]]":
    """What is started in the place of supervisors; all have ended when the test does."""
    made: list[subprocess.Popen[bytes]] = []

    def start(options: RoleOptions, folder: Path, name: str) -> "subprocess.Popen[bytes]":
        made.append(subprocess.Popen(["sleep", "60"]))
        return made[-1]

    monkeypatch.setattr(background, "_started", start)
    return made


def test_one_that_was_cancelled_is_not_started(
    options: RoleOptions, started: "list[subprocess.Popen[bytes]]", tmp_path: Path
) -> None:
    with alone_in(tmp_path / "start-1"):
        cancel(tmp_path / "start-1", NAME)
    with pytest.raises(RoleError, match="data-loader-0 was told to end before it was started"):
        start_in_background(options, tmp_path / "start-1")
    assert started == []


def test_one_of_which_nobody_would_know_is_ended(
    options: RoleOptions,
    started: "list[subprocess.Popen[bytes]]",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise DiskError("no room")

    monkeypatch.setattr(background, "note_process", full)
    with pytest.raises(DiskError, match="no room"):
        start_in_background(options, tmp_path)
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_an_exit_code_finds_room_on_a_disk_that_has_become_full(
    options: RoleOptions, started: "list[subprocess.Popen[bytes]]"
) -> None:
    with small_disk(2**16) as disk:
        start_in_background(options, disk)
        assert exit_code(disk, NAME) == KILLED
        leave_free(disk, 0)
        with pytest.raises(UserError), recorded_exit(disk / f"{NAME}.end"):
            raise UserError("no such table")
        assert exit_code(disk, NAME) == UserError.exit_code
    started[0].kill()
    started[0].wait()


def test_an_order_that_comes_between_start_and_note_waits_for_the_note(
    options: RoleOptions,
    started: "list[subprocess.Popen[bytes]]",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = {"from": "another", "number": 1, "signal": "SIGKILL", "to": [NAME]}
    session = HostSession(tmp_path, [NAME], {})
    obeying = threading.Thread(target=session.obey, args=(order,))
    note = background.note_process

    def late(folder: Path, name: str, pid: int) -> None:
        obeying.start()
        poll_for(lambda: is_waiting(tmp_path), 10.0, "the order to wait")
        note(folder, name, pid)

    monkeypatch.setattr(background, "note_process", late)
    start_in_background(options, tmp_path)
    obeying.join()
    assert started[0].wait(10.0) == -signal.SIGKILL
    assert replicas_in(tmp_path) == [NAME]


def is_waiting(folder: Path) -> bool:
    """Return whether somebody waits for the lock of a folder (proc(5): `->` marks those that wait)."""
    inode = f":{folder.stat().st_ino} "
    return any(inode in line and "->" in line for line in Path("/proc/locks").read_text().splitlines())
