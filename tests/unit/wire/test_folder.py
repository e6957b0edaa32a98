"""Folders for sockets: private, and gone in the end, whoever is killed."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from persia_cli.wire.folder import LOCK, PREFIX, private_directory, remove_abandoned
from tests.conftest import poll_for

HOLD = """
import sys
from persia_cli.wire.folder import private_directory
with private_directory() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, of this test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_the_private_directory_is_private_and_goes_away() -> None:
    with private_directory() as directory:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert directory.stat().st_uid == os.getuid()
        (directory / "left-over").touch()
    assert not directory.exists()


def hold() -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_the_folder_of_a_killed_process_goes_at_once_and_that_of_a_living_one_stays(number: signal.Signals) -> None:
    (killed, abandoned), (alive, used) = hold(), hold()
    try:
        [shell] = psutil.Process(killed.pid).children()
        shell.terminate()  # as clusters tell all processes to end
        killed.send_signal(number)
        killed.wait()
        poll_for(lambda: not abandoned.exists() and not shell.is_running(), 20.0, "the folder's removal")
        assert used.is_dir()
    finally:
        for process in (killed, alive):
            process.kill()
            process.communicate()


def test_without_a_shell_it_is_removed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object, **options: object) -> None:
        raise FileNotFoundError("/bin/sh")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with private_directory() as directory:
        assert directory.is_dir()
    assert not directory.exists()


@pytest.mark.processes
def test_where_all_were_killed_it_goes_at_the_next_start_and_what_a_living_one_has_stays() -> None:
    (killed, abandoned), (alive, used) = hold(), hold()
    try:
        killed.send_signal(signal.SIGSTOP)
        for child in psutil.Process(killed.pid).children():
            child.kill()
        killed.kill()
        killed.wait()
        assert abandoned.is_dir()
        with private_directory() as own:
            assert not abandoned.exists()
            assert used.is_dir()
            assert own.is_dir()
    finally:
        for process in (killed, alive):
            process.kill()
            process.communicate()


def test_folders_of_others_are_left_alone(temporary: Path) -> None:
    without_lock, elsewhere = temporary / f"{PREFIX}notes", temporary / "elsewhere"
    for folder in (without_lock, elsewhere):
        folder.mkdir()
    (elsewhere / LOCK).touch()
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    (temporary / f"{PREFIX}file").touch()
    remove_abandoned(temporary)
    assert sorted(path.name for path in temporary.iterdir()) == [
        "elsewhere",
        "persia-file",
        "persia-link",
        "persia-notes",
    ]
    assert (elsewhere / LOCK).exists()


def test_starters_do_not_take_each_others_folders(temporary: Path) -> None:
    """A folder is there before it is locked, and another starter may look at that moment."""
    broken: list[Path] = []

    def start_and_end() -> None:
        for _ in range(30):
            with private_directory() as folder:
                remove_abandoned(temporary)
                if not (folder / LOCK).exists():
                    broken.append(folder)

    threads = [threading.Thread(target=start_and_end) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []
    assert list(temporary.glob(f"{PREFIX}*")) == []
