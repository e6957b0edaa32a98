"""The job of a drill: `persia train` as a child process."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from persia_cli.disk import writing
from persia_cli.engines.processes import python_module
from persia_cli.engines.running import PROC, RunningProcess, parent_of, process_of, words_of
from persia_cli.errors import RoleError, UserError
from persia_cli.observe.history import EARLIER
from persia_cli.observe.journal import EVENTS, METRICS, read_journal

ERROR = ("error: ", "internal error: ")
LAUNCH_ROLE = "launch-role"
TAIL_BYTES = 1 << 15
"""Upper bound of the bytes of a line of metrics."""
END_S = 30.0
"""Seconds in which processes have to end after a signal, or after their driver was killed."""
POLL_S = 0.01


def events_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the events of a run in order, those of its earlier starts first."""
    starts = sorted((run_dir / EARLIER).glob("start*"), key=lambda path: int(path.name.partition("-")[2] or 1))
    return [event for folder in [*starts, run_dir] for event in read_journal(folder / EVENTS)]


def replicas_of(driver: int) -> dict[str, RunningProcess]:
    """Return the running replicas that are children of a driver, by name."""
    found = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or parent_of(int(entry.name)) != driver:
            continue
        words = words_of(int(entry.name))
        process = process_of(int(entry.name))
        if LAUNCH_ROLE in words and "--index" in words and process is not None and process.lives:
            role, index = words[words.index(LAUNCH_ROLE) + 1], words[words.index("--index") + 1]
            found[f"{role}-{index}"] = process
    return found


def wait_until_ended(processes: Iterable[RunningProcess], limit_s: float) -> list[RunningProcess]:
    """Wait until processes have ended; return those that are still running after so many seconds."""
    deadline = time.monotonic() + limit_s
    left = list(processes)
    while (left := [each for each in left if each.lives]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


def recorded_step(metrics: Path) -> int:
    """Return the step of the last complete line of metrics; -1 if there is none. The file may shrink meanwhile."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().split(b"\n")[-2:-1]
        return int(json.loads(lines[0])["step"]) if lines else -1
    except (OSError, ValueError, KeyError):
        return -1


class DrilledJob:
    """A job that runs while the block does: a context manager that ends all its processes on exit."""

    def __init__(self, run_dir: Path, arguments: Sequence[str], follow: Callable[[int], None]) -> None:
        """`arguments` configure the job; `follow` is called with the last step while the drill waits."""
        self.run_dir, self._arguments, self._follow = run_dir, arguments, follow
        self._log = run_dir.with_suffix(".log")
        self.start()

    def __enter__(self) -> Self:
        return self

    def start(self, *more: str) -> None:
        """Start `persia train`; the system kills it with this process, and its replicas with it."""
        command = [*python_module("persia_cli"), "train", *self._arguments, *more, "--run-dir", str(self.run_dir)]
        with writing(self._log), self._log.open("ab") as log:
            # In its own session, so that only this process gets Ctrl-C.
            self._child = subprocess.Popen(
                [*command, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def replicas(self) -> dict[str, RunningProcess]:
        """Return the current processes of the replicas by name."""
        return replicas_of(self._child.pid)

    def wait_for_step(self, step: int) -> int:
        """Wait until the job has recorded a step; return the last recorded one.

        Raises UserError or RoleError if the job ends before.
        """
        while (reached := recorded_step(self.run_dir / METRICS)) < step:
            if self._child.poll() is not None:
                kind = UserError if self._child.returncode == UserError.exit_code else RoleError
                raise kind(f"{self.wait() or 'the job was over'} (before step {step:,})")
            self._follow(reached)
            time.sleep(POLL_S)
        return reached

    def wait(self) -> str:
        """Wait for the end of the job; return why it failed, empty if it did not."""
        while self._child.poll() is None:
            self._follow(recorded_step(self.run_dir / METRICS))
            time.sleep(POLL_S)
        if self._child.returncode == 0:
            return ""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line.removeprefix(start) for line in lines for start in ERROR if line.startswith(start)]
        return errors[-1] if errors else f"the job ended with exit code {self._child.returncode}; see {self._log}"

    def kill_driver(self) -> list[RunningProcess]:
        """Kill the driver; return the processes that did not end with it, after they are killed too."""
        replicas = self.replicas()
        self._child.kill()
        self._child.wait()
        left = wait_until_ended(replicas.values(), END_S)
        for process in left:
            process.send(signal.SIGKILL)
        return left

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGINT)
            try:
                self._child.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill_driver()
