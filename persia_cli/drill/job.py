"""The job that is disturbed: `persia train` as a child of the drill, or a job that ran before."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from persia_cli.disk import writing
from persia_cli.drill.processes import replicas_of, wait_until_ended
from persia_cli.errors import UserError
from persia_cli.launch.processes import python_module
from persia_cli.launch.running import RunningProcess, process_of
from persia_cli.observe.history import EARLIER, ENDS
from persia_cli.observe.journal import EVENTS, METRICS, read_journal

ERROR = ("error: ", "internal error: ")
TAIL_BYTES = 1 << 15
"""More than a line of metrics has."""
END_S = 20.0
"""Seconds that a job has to end when it is stopped."""


def events_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the events of a run in order, those of its earlier starts first."""
    starts = sorted((run_dir / EARLIER).glob("start*"), key=lambda path: int(path.name.partition("-")[2] or 1))
    return [event for folder in [*starts, run_dir] for event in read_journal(folder / EVENTS)]


def _recorded_step(metrics: Path) -> int:
    """Return the step of the last whole line of metrics; -1 if there is none. The file may become shorter meanwhile."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().split(b"\n")[-2:-1]
        return int(json.loads(lines[0])["step"]) if lines else -1
    except (OSError, ValueError, KeyError):
        return -1


class DrilledJob:
    """A job and the processes it has now; `replicas` are the names of all that it should have."""

    def __init__(self, run_dir: Path, replicas: Sequence[str], launcher: int = 0, log: Path | None = None) -> None:
        """`launcher` is the process of a job that runs already; `log` is the output of one that is to be started."""
        self.run_dir, self.names = run_dir, list(replicas)
        self._launcher = launcher
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, words: Sequence[str]) -> None:
        """Start `persia train` with these words; the system kills it with this process, and its replicas with it."""
        assert self._log is not None
        command = [*python_module("persia_cli"), "train", *words, "--run-dir", str(self.run_dir)]
        with writing(self._log), self._log.open("ab") as log:
            # In its own session, so that only this process gets Ctrl-C.
            self._child = subprocess.Popen(
                [*command, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._launcher = self._child.pid

    @property
    def is_ours(self) -> bool:
        """True if the drill has started the job."""
        return self._child is not None

    @property
    def launcher(self) -> RunningProcess | None:
        """The launcher's process; None if it has ended."""
        return process_of(self._launcher)

    @property
    def ended(self) -> bool:
        """True once the launcher has ended."""
        if self._child is not None:
            return self._child.poll() is not None
        launcher = self.launcher
        return launcher is None or not launcher.lives

    def replicas(self) -> dict[str, RunningProcess]:
        """Return the processes that the replicas have now, by name."""
        return replicas_of(self._launcher)

    def events(self) -> list[dict[str, Any]]:
        """Return all events so far, in order."""
        return events_of(self.run_dir)

    def metrics(self) -> list[dict[str, Any]]:
        """Return all lines of metrics so far, in order."""
        return read_journal(self.run_dir / METRICS)

    @property
    def step(self) -> int:
        """The last step that was recorded; -1 before the first."""
        return _recorded_step(self.run_dir / METRICS)

    @property
    def is_over(self) -> bool:
        """True if the job has recorded its end."""
        phases = [event for event in read_journal(self.run_dir / EVENTS) if event["event"] == "phase"]
        return bool(phases) and phases[-1]["phase"] in ENDS

    def outcome(self) -> str:
        """Return why a job that has ended did not end well; empty if it did."""
        if self._child is None or self._log is None:
            return "" if self.is_over else "the job has ended without recording why"
        code = self._child.wait()
        if code == 0:
            return ""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line.removeprefix(start) for line in lines for start in ERROR if line.startswith(start)]
        return errors[-1] if errors else f"the job ended with exit code {code}; see {self._log}"

    @property
    def is_refused(self) -> bool:
        """True if the job has ended because of something that its user has to put right."""
        return self._child is not None and self._child.poll() == UserError.exit_code

    def ended_before(self, what: str) -> str:
        """Return a sentence about a job that has ended too early."""
        return f"{self.outcome() or 'the job was over'} (before {what})"

    def end(self) -> None:
        """End the job if the drill has started it: ask it to stop, and kill it after a while."""
        if self._child is None or self._child.poll() is not None:
            return
        processes = [each for each in self.replicas().values() if each.lives]
        self._child.send_signal(signal.SIGINT)
        deadline = time.monotonic() + END_S
        while self._child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._child.kill()
        self._child.wait()
        for process in wait_until_ended(processes, END_S):
            process.send(signal.SIGKILL)
