"""A folder for an export that is needed only as long as the command runs."""

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from persia_cli.disk import writing

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder of this user alone, which is removed at the end, also if signals end the block.

    The first SIGTERM, SIGHUP or Ctrl-C ends it by an exception; those that come while it ends are ignored. Raises
    DiskError.
    """
    before = {number: signal.getsignal(number) for number in ENDING}

    def end(number: int, frame: FrameType | None) -> None:
        _ignore()
        usual = before[signal.Signals(number)]
        if number == signal.SIGINT and callable(usual):
            usual(number, frame)
        sys.exit(128 + number)

    try:
        for number in ENDING:
            if before[number] is not signal.SIG_IGN:  # as of the background jobs of some shells
                signal.signal(number, end)
        with writing(Path(tempfile.gettempdir())):
            folder = Path(tempfile.mkdtemp(prefix="persia-export-"))
        try:
            yield folder
        finally:
            try:
                _ignore()
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore() -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
