"""The process of all loggers of a run: `python -m persia_cli.loggers RUN`.

It runs until its standard input ends, which is when the coordinator ends, however it does. Without a coordinator, it
sends what trackers lack. A tracker's library may print, ask, wait or crash here, and disturbs no training.
"""

import fcntl
import logging
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from persia_cli.config.record import CONFIG, read_run
from persia_cli.loggers.feed import LoggerFeed, LoggerState
from persia_cli.loggers.logger import LOGGERS, logger_of
from persia_cli.loggers.process import PROMETHEUS, names_of

LIMIT_S = 30.0
"""Maximum number of seconds for the last calls; a coordinator that waits for them ends this process earlier."""
NICER = 5
"""Training comes first where processes share cores."""


def main(run_dir: Path) -> None:
    """Feed the loggers of a run until standard input ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(message)s")
    os.nice(NICER)
    lock = os.open(run_dir / LOGGERS, os.O_RDONLY)
    with suppress(OSError):  # Some network file systems lock no folders.
        fcntl.flock(lock, fcntl.LOCK_EX)  # The process of an earlier start may still send its last lines.
    run, ending = read_run(run_dir / CONFIG), threading.Event()
    feeds = [LoggerFeed(name, logger_of(name), run, run_dir, ending) for name in names_of(run)]
    for feed in feeds:
        if feed.name == PROMETHEUS:
            feed.state = LoggerState()  # It has nothing of earlier processes.
        feed.state.process, feed.state.failures, feed.state.error = os.getpid(), 0, ""
        feed.save()
        feed.start()
    sys.stdin.buffer.read()
    ending.set()
    threading.Timer(LIMIT_S, os._exit, [0]).start()
    for feed in feeds:
        feed.join()
    os._exit(0)  # Libraries wait for their servers when the interpreter ends.


if __name__ == "__main__":
    main(Path(sys.argv[1]))
