"""Folders for sockets: private, gone in the end, and gone after the next start where their process was killed."""

import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from persia_cli.wire.folder import LOCK, PREFIX, private_directory, remove_abandoned

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


@pytest.mark.processes
def test_what_a_killed_process_left_goes_at_the_next_start_and_what_a_living_one_has_stays() -> None:
    def hold() -> tuple["subprocess.Popen[str]", Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    (killed, abandoned), (alive, used) = hold(), hold()
    try:
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
        for _ in range(150):
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
