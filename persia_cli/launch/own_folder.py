"""Temporary folders of one process, which it locks: what a killed one has left goes at the next start."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from persia_cli.disk import is_held


@contextmanager
def own_folder(prefix: str) -> Iterator[Path]:
    """Yield a new folder of this user alone, whose name begins with `prefix`, and remove it at the end.

    Folders of such names whose process is no more are removed first. Raises OSError.
    """
    place = Path(tempfile.gettempdir())
    _remove_left(place, prefix)
    folder, lock = _claimed(place, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _claimed(place: Path, prefix: str) -> tuple[Path, int]:
    """Create a folder and lock it; of a process that takes it for one that was left, it gets another."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if not is_held(lock) and folder.exists():
                    return folder, lock
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
                raise
            os.close(lock)


def _remove_left(place: Path, prefix: str) -> None:
    """Remove folders of this user that nobody has locked."""
    for folder in place.glob(f"{prefix}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(descriptor).st_uid == os.geteuid() and not is_held(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # locks are not for folders here; whoever would make one of these here is told so
            continue
        finally:
            os.close(descriptor)
