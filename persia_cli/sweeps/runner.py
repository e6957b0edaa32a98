"""The execution of a sweep: each point is a `persia train` job in its own process.

A point is recorded before its process starts and again at its end, for a grid and for a search alike.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from persia_cli.sweeps.folder import UNFINISHED, PointOutcome, run_dir_of, write_results
from persia_cli.sweeps.plan import SweepPlan, unfinished
from persia_cli.sweeps.points import Point
from persia_cli.sweeps.search import Search

POLL_S = 0.1
LOG = "sweep.log"
"""Name of the file with the output of a point's `persia train`, in its run directory."""
ERROR = ("error: ", "internal error: ")
TAIL_LINES = 3


@dataclass
class _Running:
    point: Point
    run_dir: Path
    process: subprocess.Popen[bytes]
    since: float
    stop_requested: float | None = None
    pruned: bool = False

    def request_stop(self) -> None:
        """Have the job end without saving its model."""
        self.stop_requested = time.monotonic()
        self.process.send_signal(signal.SIGINT)


class Sweep:
    """The points of a sweep, of which at most `jobs` run at a time.

    None of them outlives this process: the kernel kills each with it, and its replicas too.
    """

    def __init__(self, plan: SweepPlan, jobs: int, limit_s: float) -> None:
        """Prepare to train the points that have not finished; one that takes longer than `limit_s` seconds fails."""
        self._plan, self._jobs, self._limit_s = plan, jobs, limit_s
        self.outcomes = plan.outcomes()
        """By point, each from its start."""
        self._search = Search(plan, self.outcomes) if plan.space else None
        self._points = self._search.points() if self._search else iter(unfinished(plan, self.outcomes))
        self._running: list[_Running] = []
        # Twice the time that replicas have to end, and some for the job itself.
        self._grace_s = 2 * max(each.run.cluster.stop_timeout_s for each in plan.grid) + 5.0

    @property
    def running(self) -> list[tuple[Point, Path]]:
        """The running points with their run directories."""
        return [(each.point, each.run_dir) for each in self._running]

    def run(self, on_end: Callable[[PointOutcome], None], follow: Callable[[], None]) -> None:
        """Train all points; calls `on_end` when one ends, and `follow()` about ten times a second.

        KeyboardInterrupt (Ctrl-C, SIGTERM, a closed terminal) stops the running points, waits for them and is raised
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
        """Start points up to the number of jobs; return False once none is left."""
        while len(self._running) < self._jobs and (point := next(self._points, None)) is not None:
            self._start(point)
        return bool(self._running)

    def _start(self, point: Point) -> None:
        number = list(self.outcomes).index(point) if point in self.outcomes else len(self.outcomes)
        run_dir = run_dir_of(self._plan.folder, number, point)
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        where = str(run_dir.relative_to(self._plan.folder))
        self._record(PointOutcome(point, self._plan.seed_of(point), where, 0.0, None, UNFINISHED))
        command = [*python_module("persia_cli"), *self._plan.command(point, run_dir)[1:], "--parent", str(os.getpid())]
        with _log(run_dir).open("wb") as log:
            # In its own session, so that only this process gets Ctrl-C.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._running.append(_Running(point, run_dir, process, time.monotonic()))

    def _record(self, outcome: PointOutcome) -> None:
        self.outcomes[outcome.point] = outcome
        write_results(self._plan.folder, list(self.outcomes.values()))

    def _check(self, on_end: Callable[[PointOutcome], None]) -> None:
        """Record the points that have ended, and stop those that have run too long or are hopeless."""
        now = time.monotonic()
        hopeless = self._search.hopeless() if self._search else []
        for each in list(self._running):
            if each.process.poll() is not None:
                self._running.remove(each)
                outcome = self._outcome(each, now - each.since)
                self._record(outcome)
                on_end(outcome)
            elif each.stop_requested is not None:
                if now - each.stop_requested > self._grace_s:
                    each.process.kill()
            elif each.point in hopeless or now - each.since > self._limit_s:
                each.pruned = each.point in hopeless
                each.request_stop()

    def _outcome(self, ended: _Running, seconds: float) -> PointOutcome:
        run_dir, code = ended.run_dir, ended.process.returncode
        pruned = ended.pruned and code != 0
        metrics = metrics_in(run_dir, self._plan.metric) if code == 0 or pruned else None
        error, death = None, killed_by(-code) if code < 0 else ""
        if death and (run_dir / CONFIG).exists():
            # A signal killed the driver, and the kernel its replicas with it.
            text = f"the driver {death}"
            record_end(run_dir, phase="failed", error=text, exit_code=PersiaError.exit_code)
        if ended.stop_requested is not None and not ended.pruned:
            error = f"took longer than {self._limit_s:g} s and was stopped"
        elif code != 0 and not pruned:
            error = _reason(_log(run_dir), code, death)
        elif metrics is None:
            error = f"recorded no training in {run_dir / METRICS}"
        _move_log(run_dir)
        started = self.outcomes[ended.point]
        metrics = metrics if error is None else None
        return replace(started, seconds=round(seconds, 1), metrics=metrics, error=error, pruned=pruned)

    def _stop(self) -> None:
        """End all processes that still run: ask them to stop, and kill them after a while or at a second interrupt."""
        try:
            for each in self._running:
                if each.process.poll() is None:
                    each.process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + self._grace_s
            while any(each.process.poll() is None for each in self._running) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            for each in self._running:
                each.process.kill()
                each.process.wait()
                _move_log(each.run_dir)


def _log(run_dir: Path) -> Path:
    """Return the file for the output of a running point: next to its run directory, which it creates itself."""
    return run_dir.with_name(f"{run_dir.name}.log")


def _move_log(run_dir: Path) -> None:
    """Move the output of a point that has ended to its run directory, if that exists."""
    if run_dir.is_dir():
        rename(_log(run_dir), run_dir / LOG)


def _reason(log: Path, code: int, death: str) -> str:
    """Return the reason why a point failed: its error messages, its death by a signal, or the last of its output."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix(start) for line in lines for start in ERROR if line.startswith(start)]
    if errors:
        return "; ".join(errors)
    return death or f"ended with exit code {code}: {' / '.join(lines[-TAIL_LINES:]) or 'it printed nothing'}"
