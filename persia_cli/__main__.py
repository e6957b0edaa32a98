"""The process of the `persia` command: from its first import to its end, Ctrl-C ends it quietly with exit code 130.

Before a job has begun, SIGTERM and SIGUSR1 end its command with exit code 75; afterwards the job handles them.
Commands on which other processes depend receive them once they can handle them.
"""

import atexit
import os
import signal
import sys
import time
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""
ENDING = (signal.SIGTERM, signal.SIGUSR1)
PREEMPTED = 75
"""That of PreemptedError, whose module is not imported before there are handlers."""
DRIVER, ROLE = "drive", "launch-role"
OF_JOBS = ("train", "resume", DRIVER, ROLE)
"""Commands that schedulers start, and start again after this exit code."""

COMPLETION = "_PERSIA_COMPLETE"
"""Environment variable by which a shell asks for the completion of a line."""
IMPORT_S = 5.0
"""Seconds for which Ctrl-C waits for the end of an import."""
AGAIN_S = 0.05


def end(number: int, frame: FrameType | None) -> NoReturn:
    """End the process at once, since nothing has begun yet, or everything is done."""
    os._exit(INTERRUPTED)


def end_before_the_job(number: int, frame: FrameType | None) -> NoReturn:
    """End the process at once, with the message that no job is running."""
    name = signal.Signals(number).name
    os.write(sys.stderr.fileno(), f"{name}: stopped before the job began; run the same command again\n".encode())
    os._exit(PREEMPTED)


def waits_for_handlers(words: list[str]) -> bool:
    """Return True if signals wait until the command can pass them on, since others depend on its process already."""
    return DRIVER in words[1:3] or (ROLE in words[1:3] and "--parent" in words)


def is_importing(frame: FrameType | None) -> bool:
    """Return True if a module is being imported in a frame or one that called it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def load_app() -> Any:
    """Import the command line, and return its typer.Typer."""
    from persia_cli.main import app

    return app


def main() -> None:
    """Run the command line; while a command runs, Ctrl-C is a KeyboardInterrupt, which lets it stop its processes."""
    if COMPLETION in os.environ:
        from persia_cli.commands.completion import complete

        if complete(load_app):
            return
    came: float | None = None
    if "PERSIA_PARENT" in os.environ:
        from persia_cli.engines.processes import PARENT, die_with

        die_with(int(os.environ.pop(PARENT)))

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        now = time.monotonic()
        came = now if came is None else came
        if is_importing(frame) and now < came + IMPORT_S:
            # Libraries that import others, as pyarrow imports pandas, would drop it or raise another error.
            signal.signal(signal.SIGALRM, lambda *alarm: os.kill(os.getpid(), signal.SIGINT))
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
            return
        raise KeyboardInterrupt

    def on_interrupt(action: Any) -> None:
        # Where Ctrl-C is ignored, as in the background of some shells, it stays so.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, action)

    def on_preemption(action: Any) -> None:
        if any(word in OF_JOBS for word in sys.argv[1:3]):  # one of them, perhaps after --debug
            for number in ENDING:
                signal.signal(number, action)

    on_interrupt(end)
    on_preemption(end_before_the_job)
    if waits_for_handlers(sys.argv):
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    # At the end Python would remove this handler, and from then on Ctrl-C would kill the process.
    atexit.register(on_interrupt, signal.SIG_IGN)
    from persia_cli.main import main as run

    try:
        on_interrupt(interrupt)
        run()
    except (KeyboardInterrupt, SystemExit) as ended:
        if came is None or (isinstance(ended, SystemExit) and not ended.code):
            raise
        on_interrupt(end)
        sys.exit(INTERRUPTED)
    finally:
        on_interrupt(end)
        signal.setitimer(signal.ITIMER_REAL, 0)
        on_preemption(signal.SIG_IGN)  # the exit code is known, and nothing is left to stop


if __name__ == "__main__":
    main()
