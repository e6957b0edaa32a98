"""The execution of a sweep: each point is a `persia train` job in its own process."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from persia_cli.control.restarts import killed_by
from persia_cli.disk import rename
from persia_cli.engines.job import record_end
from persia_cli.engines.processes import python_module
from persia_cli.engines.signals import terminating_interrupts
from persia_cli.errors import PersiaError
from persia_cli.observe.history import CONFIG
from persia_cli.observe.journal import METRICS
from persia_cli.observe.outcome import metrics_in
from persia_cli.sweeps.folder import PointOutcome
from persia_cli.sweeps.points import Point

POLL_S = 0.1
LOG = "sweep.log"
"""Name of the file with the output of a point's `persia train`, in its run directory."""
ERROR = ("error: ", "internal error: ")
TAIL_LINES = 3


@dataclass(frozen=True)
class Task:
    """A point to train."""

    point: Point
    seed: str
    run_dir: Path
    conf_dirs: tuple[str, ...]
    stop_timeout_s: float
    """Seconds that its processes have to end when it is stopped."""

    @property
    def command(self) -> list[str]:
        """The command line that starts it, as a user would write it."""
        folders = [part for folder in self.conf_dirs for part in ("--conf-dir", folder)]
        return ["persia", "train", *self.point.arguments, *folders, "--run-dir", str(self.run_dir)]


@dataclass
class _Running:
    task: Task
    process: subprocess.Popen[bytes]
    since: float
    stop_requested: float | None = None
    pruned: bool = False


class Sweep:
    """The points of a sweep, of which at most `jobs` run at a time.

    None of them outlives this process: the kernel kills each with it, and its replicas too.
    """

    def __init__(self, folder: Path, tasks: Iterator[Task | None], metric: str, jobs: int, limit_s: float) -> None:
        """Prepare to run the tasks; a task that takes longer than `limit_s` seconds is stopped and counts as failed.

        The tasks yield None where the next one depends on a running one. `metric` selects the evaluation that counts,
        unless a task selects one itself.
        """
        self._metric = metric
        self._folder = folder
        self._tasks = tasks
        self._jobs = jobs
        self._limit_s = limit_s
        self._running: list[_Running] = []

    @property
    def running(self) -> list[Task]:
        """The running tasks."""
        return [each.task for each in self._running]

    def prune(self, run_dir: Path) -> None:
        """End the task of a run directory early; it does not count as failed."""
        for each in self._running:
            if each.task.run_dir == run_dir and each.stop_requested is None:
                each.pruned = True
                _request_stop(each)

    def run(self, on_end: Callable[[PointOutcome], None], follow: Callable[[], None]) -> None:
        """Run all tasks; calls `on_end` when a task ends, and `follow()` about ten times a second.

        KeyboardInterrupt (Ctrl-C, SIGTERM, a closed terminal) stops the running tasks, waits for them and is raised
        again; a second one kills them at once.
        """
        with terminating_interrupts():
            try:
                while self._fill():
                    self._check(on_end)
                    follow()
                    time.sleep(POLL_S)
            finally:
                self._stop()

    def _fill(self) -> bool:
        """Start tasks up to the number of jobs; return False once none is left."""
        while len(self._running) < self._jobs and (task := next(self._tasks, None)) is not None:
            self._start(task)
        return bool(self._running)

    def _start(self, task: Task) -> None:
        task.run_dir.parent.mkdir(parents=True, exist_ok=True)
        command = [*python_module("persia_cli"), *task.command[1:], "--parent", str(os.getpid())]
        with _log(task).open("wb") as log:
            # In its own session, so that only this process gets Ctrl-C.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._running.append(_Running(task, process, time.monotonic()))

    def _check(self, on_end: Callable[[PointOutcome], None]) -> None:
        """Handle the tasks that have ended, and stop those that have run too long."""
        now = time.monotonic()
        for each in list(self._running):
            if each.process.poll() is not None:
                self._running.remove(each)
                on_end(self._outcome(each, now - each.since))
            elif each.stop_requested is None and now - each.since > self._limit_s:
                _request_stop(each)
            elif each.stop_requested is not None and now - each.stop_requested > _grace_s(each.task):
                each.process.kill()

    def _outcome(self, ended: _Running, seconds: float) -> PointOutcome:
        task, code = ended.task, ended.process.returncode
        pruned = ended.pruned and code != 0
        figures = metrics_in(task.run_dir, self._metric) if code == 0 or pruned else None
        error, death = None, killed_by(-code) if code < 0 else ""
        if death and (task.run_dir / CONFIG).exists():
            # A signal killed the driver, and the kernel its replicas with it.
            text = f"the driver {death}"
            record_end(task.run_dir, phase="failed", error=text, exit_code=PersiaError.exit_code)
        if ended.stop_requested is not None and not ended.pruned:
            error = f"took longer than {self._limit_s:g} s and was stopped"
        elif code != 0 and not pruned:
            error = _reason(_log(task), code, death)
        elif figures is None:
            error = f"recorded no training in {task.run_dir / METRICS}"
        _move_log(task)
        where = str(task.run_dir.relative_to(self._folder))
        kept = figures if error is None else None
        return PointOutcome(task.point, task.seed, where, round(seconds, 1), kept, error, pruned)

    def _stop(self) -> None:
        """End all processes that still run: ask them to stop, and kill them after a while or at a second interrupt."""
        try:
            for each in self._running:
                if each.process.poll() is None:
                    each.process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + max((_grace_s(each.task) for each in self._running), default=0.0)
            while any(each.process.poll() is None for each in self._running) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            for each in self._running:
                each.process.kill()
                each.process.wait()
                _move_log(each.task)


def _request_stop(running: _Running) -> None:
    """Have a task end without saving its model."""
    running.stop_requested = time.monotonic()
    running.process.send_signal(signal.SIGINT)


def _grace_s(task: Task) -> float:
    """Return the seconds that a point has to end: twice the time that its replicas have, and some for itself."""
    return 2 * task.stop_timeout_s + 5.0


def _log(task: Task) -> Path:
    """Return the file for the output of a running point: next to its run directory, which it creates itself."""
    return task.run_dir.with_name(f"{task.run_dir.name}.log")


def _move_log(task: Task) -> None:
    """Move the output of a point that has ended to its run directory, if that exists."""
    if task.run_dir.is_dir():
        rename(_log(task), task.run_dir / LOG)


def _reason(log: Path, code: int, death: str) -> str:
    """Return the reason why a point failed: its error messages, its death by a signal, or the last of its output."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix(start) for line in lines for start in ERROR if line.startswith(start)]
    if errors:
        return "; ".join(errors)
    return death or f"ended with exit code {code}: {' / '.join(lines[-TAIL_LINES:]) or 'it printed nothing'}"
