"""Private folders for Unix sockets, which are removed however their process ends."""

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "persia-"
LOCK = "in-use"
"""The file in each folder that its process keeps locked. The kernel unlocks it however the process ends. A process id
would not do, since ids are reused, and other containers have their own."""
REMOVER = "trap '' TERM HUP INT; read -r nothing; rm -rf -- \"$0\""
"""What a shell beside the process runs: it waits for the end of its input, which comes with that of the process."""
REMOVED_S = 5.0


@contextmanager
def private_directory() -> Iterator[Path]:
    """Yield a new directory for ipc sockets that only this user can enter; it is removed in the end.

    If this process is killed, a shell that waits for that removes it. Where both were killed, the next process does:
    first of all, directories that ended processes of this user left behind are removed.
    """
    remove_abandoned(Path(tempfile.gettempdir()))
    folder, lock = _make()
    try:
        with _removed_at_the_end(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def _removed_at_the_end(folder: Path) -> Iterator[None]:
    """Have a folder removed when this process ends while the block runs, whatever ends it."""
    try:
        # In a session of its own: signals to this process and its group do not reach it.
        shell = subprocess.Popen(
            ["/bin/sh", "-c", REMOVER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        yield  # there is no shell, or no room for another process; the next start removes the folder
        return
    try:
        yield
    finally:
        shell.kill()
        shell.communicate(timeout=REMOVED_S)


def remove_abandoned(parent: Path) -> None:
    """Remove the folders in `parent` with a lock file that nobody holds; those of other users are left alone."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            entry = folder.lstat()
            if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != os.getuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # it is in use, or the file system has no locks
        finally:
            os.close(lock)


def _make() -> tuple[Path, int]:
    """Create and lock a folder; returns it and the file descriptor that holds the lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return folder, lock
        # Another process that starts at this moment removed the folder as abandoned, before it was locked. Try again.
        os.close(lock)
