"""A temporary folder for an export that is needed only while the command runs."""

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from persia_cli.disk import own_folder, writing

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PREFIX = "persia-export-"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder with access for this user alone, which is removed at the end, also after signals.

    The first SIGTERM, SIGHUP or Ctrl-C ends the block by an exception; later ones are ignored. The next start removes
    folders that remain after SIGKILL. Raises DiskError.
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
        with ExitStack() as stack:
            with writing(Path(tempfile.gettempdir())):
                folder = stack.enter_context(own_folder(PREFIX))
            stack.callback(_ignore)
            yield folder
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore() -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
