"""The process of all loggers of a run: `python -m persia_cli.loggers RUN`, which sends what trackers lack and ends.

Next to a coordinator it runs until its standard input ends, which is when the coordinator ends, however it does. A
tracker's library may print, ask, wait or crash here, and disturbs no training.
"""

import fcntl
import logging
import os
import sys
import threading
from pathlib import Path

from persia_cli.config.record import CONFIG, read_run
from persia_cli.errors import PersiaError, UserError
from persia_cli.loggers.feed import LoggerFeed, LoggerState
from persia_cli.loggers.logger import LOGGERS, logger_of
from persia_cli.loggers.process import FOLLOW, PROMETHEUS, gaps, names_of

LIMIT_S = 30.0
"""Maximum number of seconds for the last calls; a coordinator that waits for them ends this process earlier."""
NICER = 5
"""Training comes first where processes share cores."""


def main(run_dir: Path, follows: bool) -> int:
    """Feed the loggers of a run, until standard input ends if it `follows` a job; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(message)s")
    run, ending = read_run(run_dir / CONFIG), threading.Event()
    names = names_of(run) if follows else run.loggers
    if not names:
        raise UserError(f"the run in {run_dir} has no loggers")
    os.nice(NICER)
    _lock(run_dir, follows)
    if not follows:
        ending.set()
    feeds = [LoggerFeed(name, logger_of(name), run, run_dir, ending) for name in names]
    for feed in feeds:
        if feed.name == PROMETHEUS:
            feed.state = LoggerState()  # It has nothing of earlier processes.
        feed.state.process, feed.state.failures, feed.state.error = os.getpid(), 0, ""
        feed.save()
        feed.start()
    if follows:
        sys.stdin.buffer.read()
        ending.set()
        threading.Timer(LIMIT_S, os._exit, [0]).start()
    for feed in feeds:
        feed.join()
    lacking = [] if follows else gaps(run, run_dir)
    for text in lacking:
        logging.error("%s", text)
    return PersiaError.exit_code if lacking else 0


def _lock(run_dir: Path, waits: bool) -> None:
    """Lock the folder of the loggers until this process ends; raises UserError if it neither can nor `waits`.

    The process of an earlier start may still send its last lines.
    """
    (run_dir / LOGGERS).mkdir(exist_ok=True)
    lock = os.open(run_dir / LOGGERS, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"the loggers of {run_dir} are at work; wait for the end of the job") from None
    except OSError:
        pass  # Some network file systems lock no folders.


if __name__ == "__main__":
    try:
        code = main(Path(sys.argv[1]), FOLLOW in sys.argv)
    except PersiaError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    os._exit(code)  # Libraries wait for their servers when the interpreter ends.
