"""The publisher of a running job: a process that starts with it, and again when it dies."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from persia_cli.disk import writing
from persia_cli.store.checkpoints.cuts import cuts_of, starts_of

OUTPUT = "roles/publisher.log"
"""File in the run directory with all that the publisher prints."""
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
"""Seconds after which a publisher that died is started again: the first pause, which doubles up to the last one."""


class PublisherProcess:
    """The publisher; all methods wait for disks."""

    def __init__(self, run_dir: Path) -> None:
        """Start it; raises DiskError."""
        self._run_dir, self._pause_s, self._died_s = run_dir, FIRST_PAUSE_S, float("-inf")
        self._process: subprocess.Popen[bytes] | None = self._started()

    def look(self) -> list[str]:
        """Start a publisher that has died again, when it is due; return a sentence about its death."""
        if self._process is None:
            if time.monotonic() - self._died_s > self._pause_s:
                self._process = self._started()
            return []
        if (code := self._process.poll()) is None:
            return []
        self._end_input(self._process)
        self._process, is_soon = None, time.monotonic() - self._died_s < 2 * LAST_PAUSE_S
        self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S) if is_soon else FIRST_PAUSE_S
        self._died_s = time.monotonic()
        return [f"the publisher ended ({_how(code)}) and starts again: see {self._run_dir / OUTPUT}"]

    def close(self, seconds: float) -> list[str]:
        """Let it publish the last cuts, and kill it after so many seconds; return a sentence if some wait."""
        if (process := self._process) is not None:
            self._end_input(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        starts = starts_of(self._run_dir)
        if starts and (waiting := len(cuts_of(starts[-1]))):
            return [f"{waiting} versions are not published: persia publish {self._run_dir} does that"]
        return []

    def _end_input(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()

    def _started(self) -> "subprocess.Popen[bytes]":
        path = self._run_dir / OUTPUT
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            with path.open("ab") as output:
                command = [sys.executable, "-P", "-m", "persia_cli", "publish", str(self._run_dir), "--follow"]
                # Its own session: Ctrl-C in a terminal is for the job, which then ends the publisher.
                return subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
                )


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
