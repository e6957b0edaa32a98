"""The process of a run's publisher: `persia publish RUN`, alone or next to a job."""

import logging
import os
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

from persia_cli.config.record import CONFIG, read_run
from persia_cli.errors import UserError
from persia_cli.publish.publisher import Publisher
from persia_cli.publish.version import Version

log = logging.getLogger(__name__)

LOOK_S = 0.05
"""Seconds between two looks for cuts."""
NICER = 10
"""Training comes first where processes share cores."""


def publish_run(run_dir: Path, to: Path | None, follows: bool) -> tuple[int, Path, Version | None]:
    """Publish what waits; return the number of versions, their folder, and its newest version.

    If this `follows` a job, publish what comes until standard input ends; else, if nothing waits, the newest checkpoint
    unless a version has its step. `to` is the folder, by default that of the run. Raises UserError, CheckpointError,
    DiskError.
    """
    if not (run_dir / CONFIG).is_file():
        raise UserError(f"{run_dir} is no run directory: it has no {CONFIG}")
    run = read_run(run_dir / CONFIG)
    if to is None:
        if run.publish is None:
            raise UserError(f"{run_dir} was trained without publish.to; name a folder for its versions: --to DIR")
        to = Path(run.publish.to)
    with closing(Publisher(run_dir.absolute(), run, to.absolute(), follows)) as publisher:
        count = _follow(publisher) if follows else publisher.publish_waiting() or publisher.publish_checkpoint()
        return count, to, publisher.last


def _follow(publisher: Publisher) -> int:
    os.nice(NICER)
    ended, versions = threading.Event(), 0

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=wait_for_end, name="end", daemon=True).start()
    while True:
        is_last = ended.is_set()
        versions += publisher.publish_waiting()
        if is_last:
            log.info("CPU of the publisher: %.1f s for %d versions", time.process_time(), versions)
            return versions
        ended.wait(LOOK_S)
