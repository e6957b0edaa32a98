"""The process of the `persia` command: from its first import to its end, Ctrl-C ends it quietly with exit code 130."""

import atexit
import os
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def end(number: int, frame: FrameType | None) -> NoReturn:
    """End the process at once: nothing has begun yet, or all is done."""
    os._exit(INTERRUPTED)


def main() -> None:
    """Run the command line; while a command runs, Ctrl-C is a KeyboardInterrupt, which lets it stop what it started."""
    came = False

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    def on_interrupt(action: Any) -> None:
        # Where Ctrl-C is ignored, as in the background of some shells, it stays so.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, action)

    on_interrupt(end)
    # The last that Python does would be to forget this handler, and from then on Ctrl-C would kill the process.
    atexit.register(on_interrupt, signal.SIG_IGN)
    from persia_cli.main import main as run

    try:
        on_interrupt(interrupt)
        run()
    except (KeyboardInterrupt, SystemExit) as ended:
        # Libraries make other errors of an interrupt that comes while they are imported.
        if not came or (isinstance(ended, SystemExit) and not ended.code):
            raise
        on_interrupt(end)
        sys.exit(INTERRUPTED)
    finally:
        on_interrupt(end)


if __name__ == "__main__":
    main()
