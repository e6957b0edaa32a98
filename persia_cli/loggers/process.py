"""The process of a run's loggers, as the coordinator starts it, and as a command does after the job."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from persia_cli.config.record import CONFIG, read_run
from persia_cli.config.schema import Run
from persia_cli.disk import writing
from persia_cli.errors import count
from persia_cli.loggers.feed import state_in
from persia_cli.loggers.logger import LOGGERS
from persia_cli.observe.journal import METRICS, read_journal

PROMETHEUS = "prometheus"
"""The logger of `metrics_port`, which is no tracker."""
OUTPUT = "output.log"
"""File in the folder of the loggers with all that their libraries print."""
FOLLOW = "--follow"
"""Argument of a process next to a coordinator, which ends with its standard input."""
REST_S = 30.0
"""Maximum number of seconds in which a command sends the rest."""


def names_of(run: Run) -> list[str]:
    """Return the loggers of a run."""
    return [*run.loggers, *([PROMETHEUS] if run.metrics_port is not None else [])]


class Loggers:
    """The loggers of a running job; all methods wait for disks."""

    def __init__(self, run: Run, run_dir: Path) -> None:
        """Start their process; raises DiskError."""
        self._run, self._run_dir, self._names = run, run_dir, names_of(run)
        self._failed: set[str] = set()
        self._process = _started(run_dir, subprocess.PIPE)

    def failures(self) -> list[str]:
        """Return a sentence about each logger that has failed for the first time."""
        texts = []
        for name in self._names:
            state = state_in(self._run_dir, name)  # It may be of an earlier start.
            if state.failures and state.process == self._process.pid and name not in self._failed:
                self._failed.add(name)
                texts.append(
                    f"loggers: {name}: {state.error}; training goes on, and what failed is repeated: see "
                    f"{self._run_dir / LOGGERS / OUTPUT}"
                )
        return texts

    def close(self, seconds: float) -> list[str]:
        """End the loggers, killing them after so many seconds; return sentences about what has failed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        _end(self._process, seconds)
        return self.failures() + gaps(self._run, self._run_dir)


def gaps(run: Run, run_dir: Path) -> list[str]:
    """Return a sentence about each tracker that lacks lines."""
    texts, lines = [], read_journal(run_dir / METRICS)
    for name in run.loggers:
        state = state_in(run_dir, name)
        if lacks := sum(map(state.lacks, lines)):
            failed = f"{name} lacks {count(lacks, 'line')} of metrics ({count(state.failures, 'failed call')})"
            rest = f"a resume sends them, and so does python -m persia_cli.loggers {run_dir}"
            texts.append(f"loggers: {failed}; {rest}")
    return texts


def send_rest(run_dir: Path) -> list[str]:
    """Send lines that were written after the end of a job, such as that of its test; raises DiskError.

    Return a sentence about each tracker that lacks lines.
    """
    _end(_started(run_dir, subprocess.DEVNULL), REST_S)
    return gaps(read_run(run_dir / CONFIG), run_dir)


def _end(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Wait for the end of the loggers, and kill them after so many seconds."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _started(run_dir: Path, standard_input: int) -> "subprocess.Popen[bytes]":
    folder = run_dir / LOGGERS
    with writing(folder):
        folder.mkdir(exist_ok=True)
        with (folder / OUTPUT).open("ab") as output:
            follow = [FOLLOW] if standard_input == subprocess.PIPE else []
            command = [sys.executable, "-P", "-m", "persia_cli.loggers", str(run_dir), *follow]
            # Its own session: Ctrl-C in a terminal is for the job, which then ends the loggers.
            return subprocess.Popen(command, stdin=standard_input, stdout=output, stderr=output, start_new_session=True)
