"""The files of traces in a run directory, to which the coordinator appends the portions that replicas send."""

import logging
import os
import time
from pathlib import Path

import msgspec

from persia_cli.observe.recordings import TracePortion, recording_of
from persia_cli.observe.trace import own_clock

log = logging.getLogger(__name__)


class TraceFiles:
    """The trace files of a run; all methods wait for a disk."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._behind_ns = time.time_ns() - time.monotonic_ns()

    def append(self, portion: TracePortion) -> str:
        """Append a portion to the file of its replica; return the reason why the disk refused it, or an empty text."""
        try:
            self._append(portion)
        except OSError as error:
            log.warning("a portion of the trace of %s is lost: %s", portion.replica, error)
            return error.strerror or str(error)
        return ""

    def _append(self, portion: TracePortion) -> None:
        clock = own_clock()
        if portion.clock == clock:
            portion = msgspec.structs.replace(portion, ahead_ns=0, within_ns=0)
        portion = msgspec.structs.replace(portion, clock=clock, behind_ns=self._behind_ns)
        path = recording_of(self._run_dir, portion.replica)
        path.parent.mkdir(exist_ok=True)
        rest = memoryview(msgspec.json.encode(portion) + b"\n")
        with path.open("ab", buffering=0) as file:
            whole = os.fstat(file.fileno()).st_size
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(whole)  # a partial line would damage the next one
                raise
