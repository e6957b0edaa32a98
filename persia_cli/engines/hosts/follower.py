"""The command that follows a job, as its run directory knows it: who wants the job to end tells that command.

It may just be taking the job back to a checkpoint, when there is nothing on the machines that could be told.
"""

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from persia_cli.disk import write_whole
from persia_cli.engines.running import RunningProcess, process_of
from persia_cli.errors import DiskError

FILE = "follower.json"
"""File of a run directory with the process that follows the job or, once it has ended, its exit code."""


@dataclass(frozen=True)
class Follower:
    """A command that follows a job, or did."""

    process: RunningProcess
    host: str
    code: int | None
    """Its exit code; None while it runs, and if it was killed."""

    @property
    def lives_here(self) -> bool:
        """True while it runs on this machine."""
        return self.host == socket.gethostname() and self.process.lives


def note_follower(run_dir: Path) -> None:
    """Note that this process follows the job of a run directory from now on; raises DiskError."""
    own = process_of(os.getpid())
    if own is not None:
        _write(Follower(own, socket.gethostname(), None), run_dir)


def note_end(run_dir: Path, code: int) -> None:
    """Note the exit code of this process, if it is the one that follows the job."""
    known = follower_of(run_dir)
    if known is not None and known.process == process_of(os.getpid()):
        with suppress(DiskError):  # who asks learns then only that it has ended
            _write(Follower(known.process, known.host, code), run_dir)


def follower_of(run_dir: Path) -> Follower | None:
    """Return the command that follows a job, or did last; None if there was none."""
    try:
        known = json.loads((run_dir / FILE).read_bytes())
        return Follower(RunningProcess(int(known["pid"]), int(known["began"])), str(known["host"]), known["code"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _write(follower: Follower, run_dir: Path) -> None:
    process = follower.process
    known = {"pid": process.pid, "began": process.started, "host": follower.host, "code": follower.code}
    write_whole(run_dir / FILE, json.dumps(known) + "\n")
