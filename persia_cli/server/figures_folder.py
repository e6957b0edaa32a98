"""The folder in which the workers of a server count; what a killed server has left of it goes at the next start."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from persia_cli.disk import is_held
from persia_cli.errors import UserError

PREFIX = "persia-serve-"
YOUNG_S = 60.0
"""Age up to which a folder without a lock may be one that is about to get it."""


@contextmanager
def figures_folder() -> Iterator[str]:
    """Yield a new folder for files of figures, locked by this process; raises UserError."""
    try:
        place = Path(tempfile.gettempdir())
        _remove_left(place)
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=place)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(f"figures of the server need a place: {error}; name a folder for them as TMPDIR") from error
    try:
        is_held(lock)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_left(place: Path) -> None:
    """Remove folders of this user whose server is no more."""
    for folder in place.glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            status = os.fstat(descriptor)
            is_old = time.time() - status.st_mtime > YOUNG_S
            if status.st_uid == os.geteuid() and is_old and not is_held(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
