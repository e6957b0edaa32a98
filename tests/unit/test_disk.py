"""Files that appear whole or not at all, folders of one process, and errors of a full disk."""

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from persia_cli.disk import claim_folder, disk_error, is_held, refusal, rename, replacing, write_whole, writing
from persia_cli.errors import DiskError
from tests.support.full_disk import leave_free, small_disk


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """Let this process write no file beyond so many bytes, as `ulimit -f` does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text in ("old", "größer"):
        write_whole(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_only(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, "old")
    with pytest.raises(ZeroDivisionError), replacing(path) as part:
        part.write_text("half" * (1 // 0))
    with files_of_at_most(100), pytest.raises(DiskError, match=r"cannot write .*a\.json: it would be larger than"):
        write_whole(path, "x" * 101)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


STEPS = """
import os, signal, sys
from pathlib import Path
from persia_cli import disk

killed_at, path = int(sys.argv[1]), Path(sys.argv[2])
steps = []

def step(function):
    def stepping(*arguments):
        if len(steps) == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        named = arguments[0]
        steps.append((function.__name__, os.readlink(f"/proc/self/fd/{named}") if isinstance(named, int) else named))
        return function(*arguments)
    return stepping

os.fsync, os.replace = step(os.fsync), step(os.replace)
disk.write_whole(path, "the new text")
print(*(f"{name} {'folder' if Path(named) == path.parent else 'file'}" for name, named in steps), sep="; ")
"""
"""A program that writes a file, and is killed before its n-th step."""


@pytest.mark.parametrize(("step", "text"), [(0, "old"), (1, "old"), (2, "the new text"), (3, "the new text")])
def test_a_file_is_whole_wherever_its_writer_is_killed(tmp_path: Path, step: int, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    ended = subprocess.run([sys.executable, "-c", STEPS, str(step), path], capture_output=True, text=True)
    assert path.read_text() == text
    if step == 3:
        assert ended.stdout == "fsync file; replace file; fsync folder\n"
    else:
        assert ended.returncode == -signal.SIGKILL
    write_whole(path, "again")
    assert path.read_text() == "again"


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_must_not_replace_another(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*paths: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    old, new, free = (tmp_path / name for name in ("old", "new", "free"))
    old.write_text("old")
    new.write_text("new")
    with pytest.raises(FileExistsError):
        rename(new, old, overwrite=False)
    assert (old.read_text(), new.read_text()) == ("old", "new")
    rename(new, free, overwrite=False)
    assert free.read_text() == "new"
    assert sorted(tmp_path.iterdir()) == [free, old]


def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(2**16) as disk:
        write_whole(disk / "a.json", "old")
        leave_free(disk, 4096)
        with pytest.raises(DiskError, match=rf"^disk full: cannot write {disk}/a\.json; free space or choose"):
            write_whole(disk / "a.json", "x" * 9000)
        assert (disk / "a.json").read_text() == "old"
        write_whole(disk / "a.json", "new")
    with pytest.raises(DiskError, match=r"disk full: cannot write /dev/full"), writing(Path("/dev/full")):
        Path("/dev/full").write_text("x")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EDQUOT, "disk quota used up: cannot write /a/b; free space or choose another place"),
        (errno.EROFS, "cannot write /a/b: the file system is read-only; choose another place"),
        (errno.EACCES, "cannot write /a/b: permission denied; choose another place, or ask its owner to allow it"),
        (errno.EISDIR, "cannot write /a/b: Is a directory; choose another place"),
        (errno.ENOTDIR, "/a/b cannot be a path, since a file is where it needs a folder; choose another place"),
    ],
)
def test_every_refusal_is_a_sentence(number: int, text: str) -> None:
    assert str(disk_error(OSError(number, os.strerror(number)), Path("/a/b"))) == text


def test_only_what_a_disk_refuses_is_laid_at_its_door() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/a/b")
    assert str(refusal(full)).startswith("disk full: cannot write /a/b;")
    assert refusal(ConnectionResetError(errno.ECONNRESET, "reset")) is refusal(ValueError("no")) is None


def test_of_many_that_claim_a_folder_at_once_each_has_its_own(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    claimed: list[Path] = []

    def claim() -> None:
        start.wait()
        claimed.append(claim_folder(tmp_path / "runs" / "shop"))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {"shop", *(f"shop-{number}" for number in range(2, 9))}
    assert {path.name for path in claimed} == names == {path.name for path in (tmp_path / "runs").iterdir()}


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="file/runs/shop cannot be a path"):
        claim_folder(tmp_path / "file" / "runs" / "shop")


def test_a_lock_is_held_until_it_is_closed(tmp_path: Path) -> None:
    one, other = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    try:
        assert not is_held(one)
        assert is_held(other)
        fcntl.flock(one, fcntl.LOCK_UN)
        assert not is_held(other)
    finally:
        os.close(one)
        os.close(other)
