"""The points of a sweep as `persia train` jobs, each in a process of its own: start, watch, stop."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from persia_cli.launch.interrupts import terminating_interrupts
from persia_cli.launch.sweep_folder import Outcome
from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.observe.outcome import figures_of
from persia_cli.plan.grid import Point

POLL_S = 0.1
LOG = "sweep.log"
"""What the point's `persia train` printed, in its run directory once it has one."""
ERROR = ("error: ", "internal error: ")
TAIL_LINES = 3


@dataclass(frozen=True)
class Task:
    """A point that is to be trained."""

    point: Point
    seed: str
    run_dir: Path
    conf_dirs: tuple[str, ...]
    stop_timeout_s: float
    """Seconds that its processes get to end when it is stopped."""

    @property
    def command(self) -> list[str]:
        """What starts it, as a person would write it."""
        folders = [part for folder in self.conf_dirs for part in ("--conf-dir", folder)]
        return ["persia", "train", *self.point.words, *folders, "--run-dir", str(self.run_dir)]


@dataclass
class _Running:
    task: Task
    process: subprocess.Popen[bytes]
    since: float
    told_to_stop: float | None = None


class Sweep:
    """Points that run at most `jobs` at a time.

    None outlives this process: each asks the kernel to be killed with it, and its replicas die with it.
    """

    def __init__(self, folder: Path, tasks: Sequence[Task], jobs: int, limit_s: float) -> None:
        """Prepare to run the tasks; one that takes longer than `limit_s` seconds is stopped and has failed."""
        self._folder = folder
        self._waiting = list(tasks)
        self._jobs = jobs
        self._limit_s = limit_s
        self._running: list[_Running] = []

    @property
    def running(self) -> list[Task]:
        """What runs now."""
        return [each.task for each in self._running]

    def run(self, on_end: Callable[[Outcome], None], follow: Callable[[], None]) -> None:
        """Run all, telling `on_end` of each as it ends; `follow()` is called about ten times a second.

        KeyboardInterrupt (Ctrl-C, SIGTERM, a closed terminal) stops those that run, waits for them and is raised again;
        a second one kills them at once.
        """
        with terminating_interrupts():
            try:
                while self._waiting or self._running:
                    while self._waiting and len(self._running) < self._jobs:
                        self._start(self._waiting.pop(0))
                    self._look(on_end)
                    follow()
                    time.sleep(POLL_S)
            finally:
                self._stop()

    def _start(self, task: Task) -> None:
        task.run_dir.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "persia_cli", *task.command[1:], "--parent", str(os.getpid())]
        with _log(task).open("wb") as log:
            # A session of its own, so that Ctrl-C reaches only us.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._running.append(_Running(task, process, time.monotonic()))

    def _look(self, on_end: Callable[[Outcome], None]) -> None:
        """Take those that have ended, and stop those that have run too long."""
        now = time.monotonic()
        for each in list(self._running):
            if each.process.poll() is not None:
                self._running.remove(each)
                on_end(self._outcome(each, now - each.since))
            elif each.told_to_stop is None and now - each.since > self._limit_s:
                each.told_to_stop = now
                each.process.send_signal(signal.SIGTERM)
            elif each.told_to_stop is not None and now - each.told_to_stop > _grace_s(each.task):
                each.process.kill()

    def _outcome(self, ended: _Running, seconds: float) -> Outcome:
        task, code = ended.task, ended.process.returncode
        figures = figures_of(read_journal(task.run_dir / METRICS)) if code == 0 else None
        error = None
        if ended.told_to_stop is not None:
            error = f"took longer than {self._limit_s:g} s and was stopped"
        elif code != 0:
            error = _reason(_log(task), code)
        elif figures is None:
            error = f"recorded no training in {task.run_dir / METRICS}"
        _keep_log(task)
        where = str(task.run_dir.relative_to(self._folder))
        return Outcome(task.point, task.seed, where, round(seconds, 1), figures if error is None else None, error)

    def _stop(self) -> None:
        """End every process that still runs: asked first, killed when its time is over or at a second interrupt."""
        try:
            for each in self._running:
                if each.process.poll() is None:
                    each.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + max((_grace_s(each.task) for each in self._running), default=0.0)
            while any(each.process.poll() is None for each in self._running) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            for each in self._running:
                each.process.kill()
                each.process.wait()
                _keep_log(each.task)


def _grace_s(task: Task) -> float:
    """Seconds that a point gets to end: what it gives its own replicas, for two rounds, and some for itself."""
    return 2 * task.stop_timeout_s + 5.0


def _log(task: Task) -> Path:
    """Where the output of a running point goes: beside its run directory, which it makes itself."""
    return task.run_dir.with_name(f"{task.run_dir.name}.log")


def _keep_log(task: Task) -> None:
    """Move the output of a point that has ended into its run directory, if it came so far as to make one."""
    if task.run_dir.is_dir():
        _log(task).replace(task.run_dir / LOG)


def _reason(log: Path, code: int) -> str:
    """Say why a point failed: its own sentences, or the last lines it printed."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix(start) for line in lines for start in ERROR if line.startswith(start)]
    if errors:
        return "; ".join(errors)
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}: {' / '.join(lines[-TAIL_LINES:]) or 'it printed nothing'}"
