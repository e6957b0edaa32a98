"""A folder of one process: that of a killed process is removed, that of a running one stays, however old."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from persia_cli import disk
from persia_cli.disk import own_folder as folder_of

PREFIX = "persia-tried-"
KILLED = f"""
import os, signal
from persia_cli.disk import own_folder
with own_folder("{PREFIX}") as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_folders_of_killed_processes_are_removed_and_others_stay(place: Path) -> None:
    with folder_of(PREFIX) as first:
        os.utime(first, (1, 1))
        killed = subprocess.run([sys.executable, "-c", KILLED], env=os.environ | {"TMPDIR": str(place)}, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert len(list(place.iterdir())) == 2
        (place / f"{PREFIX}file").write_text("no folder")
        (place / f"{PREFIX}link").symlink_to(first)
        with folder_of(PREFIX) as second:
            assert {path.name for path in place.iterdir() if not path.is_symlink() and path.is_dir()} == {
                first.name, second.name,
            }  # fmt: skip
            assert second.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in place.iterdir()} == {f"{PREFIX}file", f"{PREFIX}link"}


def test_a_folder_that_is_taken_for_one_that_was_left_is_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is locked another process may find it."""
    made = []
    make = disk.tempfile.mkdtemp

    def taken(**words: str) -> str:
        made.append(make(**words))
        if len(made) < 3:
            disk._remove_left(place, PREFIX)
        return made[-1]

    monkeypatch.setattr(disk.tempfile, "mkdtemp", taken)
    with folder_of(PREFIX) as folder:
        assert str(folder) == made[2]
        assert [path.name for path in place.iterdir()] == [folder.name]
    assert list(place.iterdir()) == []


def test_many_that_begin_at_once_leave_each_other_alone(place: Path) -> None:
    failures = []

    def begin() -> None:
        try:
            for number in range(30):
                with folder_of(PREFIX) as folder:
                    (folder / "file").write_text(str(number))
                    assert (folder / "file").read_text() == str(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert list(place.iterdir()) == []
