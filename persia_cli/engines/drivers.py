"""The driver of a run as commands on its machine see it: a process there, or a job of Slurm."""

import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from persia_cli.engines.driver_process import exit_code, note_of
from persia_cli.engines.engine import JobDriver, engine_named
from persia_cli.engines.job import JOB
from persia_cli.engines.role import read_job
from persia_cli.engines.running import RunningProcess, handles, process_of
from persia_cli.errors import PreemptedError, UserError
from persia_cli.observe.history import ENDS
from persia_cli.observe.journal import EVENTS, is_being_written, read_journal

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


def driver_of(run_dir: Path) -> JobDriver:
    """Return the driver of a run, perhaps one that has ended.

    Raises UserError if it is on another machine, or if there is no job.
    """
    if (note := note_of(run_dir)) is None:
        return LaunchedDriver(run_dir)
    if note.job:
        return engine_named(note.scheduler).scheduled_driver(note.job)
    _require_here(run_dir, note.host)
    return ProcessDriver(note.process, run_dir)


def code_of(run_dir: Path) -> int:
    """Return the exit code of the driver of a run that has ended."""
    if note_of(run_dir) is not None:
        return exit_code(run_dir)
    end = _end_of(run_dir)
    if end.get("phase") == "stopped":
        return PreemptedError.exit_code if end.get("signal") else INTERRUPTED
    return 0 if end.get("phase") == "done" else 1


class ProcessDriver:
    """A driver that is a process of this machine."""

    waits_for = ""

    def __init__(self, process: RunningProcess, run_dir: Path) -> None:
        self._process, self._run_dir = process, run_dir

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return self._process.lives

    def stop(self, at_once: bool) -> None:
        """Have it save the model and end the job, or end it `at_once`; raises UserError if another user has it."""
        if at_once and not handles(self._process.pid, signal.SIGINT):  # a script has started it by `&`
            self.kill()
            return
        self._send(signal.SIGINT if at_once else signal.SIGTERM)
        self._send(signal.SIGCONT)  # Ctrl-Z may have suspended it

    def kill(self) -> None:
        """End it, and all that it has started."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        try:
            self._process.send(number)
        except PermissionError:
            whose = f"process {self._process.pid}, which drives {self._run_dir}, belongs to another user"
            raise UserError(f"{whose}; stop it as that user") from None


class LaunchedDriver:
    """The parent of a coordinator that a command, a scheduler, a container or a user has started here.

    A later process with the number of one that was killed is another one: a coordinator holds the journal.
    """

    waits_for = ""

    def __init__(self, run_dir: Path) -> None:
        """Raises UserError if the run was started on another machine."""
        self._run_dir = run_dir
        began = _coordinators_in(run_dir)
        if began and not _end_of(run_dir):
            _require_here(run_dir, str(began[-1]["host"]))

    @property
    def running(self) -> bool:
        """True until it has ended; a container that ends takes this process with it, so the recorded end counts."""
        return _end_of(self._run_dir).get("phase") not in ("done", "stopped") and bool(self._processes())

    def stop(self, at_once: bool) -> None:
        """Have it save the model and end the job, or end it `at_once`."""
        for process in self._processes()[:1]:
            ProcessDriver(process, self._run_dir).stop(at_once)

    def kill(self) -> None:
        """End it, and all that it has started."""
        for process in self._processes()[:1]:
            ProcessDriver(process, self._run_dir).kill()

    def _processes(self) -> list[RunningProcess]:
        """Return which processes run of the parent and the coordinator; another program handles no such signals."""
        job = read_job(self._run_dir / JOB)
        found = [RunningProcess(job.driver, job.driver_began)]
        began = _coordinators_in(self._run_dir)
        coordinator = process_of(int(began[-1]["pid"])) if began and is_being_written(self._run_dir / EVENTS) else None
        found += [coordinator] if coordinator else []
        return [process for process in found if process.lives and handles(process.pid, signal.SIGTERM)]


def _coordinators_in(run_dir: Path) -> Sequence[dict[str, Any]]:
    """Return the events with the machine and process of each coordinator."""
    return [event for event in read_journal(run_dir / EVENTS) if event["event"] == "began"]


def _end_of(run_dir: Path) -> dict[str, Any]:
    """Return the event that ended the last start of a job; empty if it goes on."""
    return next((event for event in reversed(read_journal(run_dir / EVENTS)) if event.get("phase") in ENDS), {})


def _require_here(run_dir: Path, host: str) -> None:
    if host != socket.gethostname():
        raise UserError(f"the run in {run_dir} was started on {host}; give this command there")
