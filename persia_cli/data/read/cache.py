"""The files that Persia makes of data, once on a machine: converted text, stores of events, items of training rows.

One process makes a file, and the others wait for it; it has its name once it is whole. A process locks the files that
it uses. Those that none uses or has used for long are removed before another one is made.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

from persia_cli.disk import is_held, rename
from persia_cli.errors import DataError, one_line

CACHE = "PERSIA_CACHE_DIR"
"""Environment variable that names the folder of the cache; by default ~/.cache/persia."""
PREFIX = "persia-"
"""The names of all files that Persia has written, and may remove, begin with this."""
UNUSED_DAYS = 30
"""Age after the last use at which files are removed."""
BUILD_S = 3600.0
"""Longest wait for a file that another process makes."""
_GUARD = ".lock"
_LOCKS: dict[Path, int] = {}
"""The files that this process has used, each as a descriptor with a shared lock."""


def cache_folder() -> Path:
    """Return the folder of converted text and of stores of events."""
    named = os.environ.get(CACHE)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(named) if named else Path(base) / "persia").expanduser() / "text"


def use(path: Path, make: Callable[[Path], None], what: str, waiting: Callable[[], None] = lambda: None) -> None:
    """Lock a file until this process ends; if it is missing, `make` writes it, by another name that it gets.

    `what` names the work in the DataError for a folder that cannot be written. `waiting` is called again and again
    while another process makes the file.
    """
    if not lock(path):
        _remove_unused(path.parent)
        try:
            with building(path, waiting=waiting) as is_missing:
                if is_missing:
                    _write(path, make)
                lock(path)
        except OSError as error:
            raise DataError(
                f"{what} into {path.parent}, which cannot be written ({one_line(error)}); free space there or name "
                f"another folder by {CACHE}"
            ) from error
    with suppress(OSError):  # the cache of another user works as well
        os.utime(path)


def _write(path: Path, make: Callable[[Path], None]) -> None:
    part = path.with_name(f"{PREFIX}{uuid4().hex}.part")
    part.touch(exist_ok=False)  # for all who share the cache, as far as the umask allows it
    try:
        make(part)
        rename(part, path)
    finally:
        part.unlink(missing_ok=True)


def lock(path: Path) -> bool:
    """Lock a file until this process ends, so that none removes it; return False if it is missing."""
    if not os.access(path, os.R_OK):
        return False
    if path not in _LOCKS:
        with suppress(FileNotFoundError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(file, fcntl.LOCK_SH)
            if os.fstat(file).st_nlink:
                _LOCKS[path] = file
            else:
                os.close(file)  # another process removed it between the opening and the lock
    return path in _LOCKS


@contextmanager
def building(path: Path, wait_s: float = BUILD_S, waiting: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Let one process at a time make a file; give True if it is still missing, which the block changes.

    The system releases the lock of a process that dies. Raises DataError if another holds it for longer than `wait_s`,
    and OSError for a folder that cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    guard = path.with_suffix(_GUARD)
    end = time.monotonic() + wait_s
    with guard.open("ab") as file:
        while is_held(file.fileno()):
            if time.monotonic() > end:
                raise DataError(
                    f"another process has been making {path} for {wait_s:.0f} s; end it, or name another folder by "
                    f"{CACHE}"
                )
            waiting()
            time.sleep(0.05)
        try:
            yield not lock(path)
        finally:
            guard.unlink(missing_ok=True)  # one that waits has it open, and finds the file made


@cache
def _remove_unused(folder: Path) -> None:
    """Remove files that no process uses or has used for long, and what processes that were killed have left."""
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError), path.open("rb") as file:
            days = 1 if path.suffix in (".part", _GUARD) else UNUSED_DAYS
            is_old = time.time() - os.fstat(file.fileno()).st_mtime > 86_400 * days
            if is_old and not is_held(file.fileno()):
                path.unlink()
