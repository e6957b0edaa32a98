"""The process that drives a job, and how other commands find it: by its note in the run directory.

It is the command itself, or with other machines a separate process next to the coordinator, perhaps the script of a
scheduler's job. A folder of the run directory then has its process, its log and, in the end, its exit code.
"""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from persia_cli.disk import is_held, write_whole, writing
from persia_cli.engines.engine import JobDriver, engine_named
from persia_cli.engines.job import JOB, read_job
from persia_cli.engines.processes import RunningProcess, handles, process_of, python_module
from persia_cli.engines.resumed import DRIVER
from persia_cli.engines.signals import ENDING_SIGNALS
from persia_cli.errors import PreemptedError, UserError, exit_code_of
from persia_cli.observe.history import ENDS
from persia_cli.observe.journal import EVENTS, is_being_written, read_journal
from persia_cli.store.memory_file import new_file

LOG, RECORD, END = "driver.log", "driver.json", "driver.end"
ELSEWHERE = "hosts.json"
"""File of a run directory with the place of the run on the first host, if its driver is there."""
KILLED = 128 + signal.SIGKILL
"""Exit code of a driver that could not leave one."""
GOES_ON = "the run in {0} still goes on; persia attach {0} shows it, persia stop {0} ends it"
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


@dataclass(frozen=True)
class DriverRecord:
    """The driver of a run, as its run directory names it."""

    host: str
    process: RunningProcess
    scheduler: str
    """Kind of the engine whose scheduler runs the driver; empty if none does."""
    job: str
    """The scheduler's name of the job whose script the driver is."""


_DECODER = msgspec.json.Decoder(DriverRecord)


def start_driver(
    run_dir: Path, arguments: Sequence[str], given: str, flags: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """Start the driver of a run, which goes on when this process ends; `given` is its input.

    Raises UserError if the run has a driver.
    """
    lock = _locked(run_dir)
    # Whole before the driver begins, so that it never gets a half of it, however this process ends.
    source = new_file("driver")
    try:
        _remove_record(run_dir)
        os.write(source, given.encode())
        os.lseek(source, 0, os.SEEK_SET)
        log = run_dir / DRIVER / LOG
        with writing(log), log.open("wb") as output:
            command = [*python_module("persia_cli"), *flags, "drive", "--run-dir", str(run_dir), "--lock", str(lock)]
            # The driver begins with these signals blocked, so they wait until it can handle them.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
            try:
                process = subprocess.Popen(
                    [*command, *arguments],
                    stdin=source,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _record(run_dir, process.pid)
        return process
    finally:
        os.close(source)
        os.close(lock)  # the driver has it from its first moment on


def _locked(run_dir: Path) -> int:
    """Return the open folder of a run's driver, locked; raises UserError if another process has it, and DiskError."""
    folder = run_dir / DRIVER
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    if is_held(lock):
        os.close(lock)
        raise UserError(GOES_ON.format(run_dir))
    return lock


def forget_driver(run_dir: Path) -> None:
    """Remove what is known of the last driver of a run, which goes on without one."""
    _remove_record(run_dir)
    (run_dir / ELSEWHERE).unlink(missing_ok=True)


def _remove_record(run_dir: Path) -> None:
    for name in (RECORD, END):
        (run_dir / DRIVER / name).unlink(missing_ok=True)


@contextmanager
def driving(run_dir: Path, lock: int | None = None, scheduler: str = "", job: str = "") -> Iterator[None]:
    """Note this process as the driver of a run, and in the end its exit code; raises UserError if there is another.

    `lock` is the folder as the command has locked it that has started this process. `job` is that of a `scheduler`.
    """
    if lock is None:
        lock = _locked(run_dir)
    else:
        os.set_inheritable(lock, False)
    try:
        (run_dir / DRIVER / END).unlink(missing_ok=True)
        _record(run_dir, os.getpid(), scheduler, job)
        try:
            yield
        except BaseException as error:
            _leave(run_dir, exit_code_of(error))
            raise
        _leave(run_dir, 0)
    finally:
        os.close(lock)


def _leave(run_dir: Path, code: int) -> None:
    with suppress(OSError):  # on a full disk the record of the run has the end
        (run_dir / DRIVER / END).write_text(f"{code}\n", encoding="ascii")


def record_queued(run_dir: Path, scheduler: str, job: str) -> None:
    """Note the job of a scheduler whose script will be the driver of a run."""
    with writing(run_dir / DRIVER):
        (run_dir / DRIVER).mkdir(parents=True, exist_ok=True)
    _remove_record(run_dir)
    _write(run_dir, DriverRecord("", RunningProcess(0, 0), scheduler, job))


def _record(run_dir: Path, pid: int, scheduler: str = "", job: str = "") -> None:
    process = process_of(pid) or RunningProcess(pid, 0)
    _write(run_dir, DriverRecord(socket.gethostname(), process, scheduler, job))


def _write(run_dir: Path, driver: DriverRecord) -> None:
    write_whole(run_dir / DRIVER / RECORD, json.dumps(asdict(driver)) + "\n")


def driver_record(run_dir: Path) -> DriverRecord | None:
    """Return the note on the driver of a run; None if the run has none."""
    path = run_dir / DRIVER / RECORD
    try:
        return _DECODER.decode(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError):
        raise UserError(f"{path} is damaged: it does not name the process that drives the job") from None


def is_submitted(run_dir: Path) -> bool:
    """Return whether the job of a run directory runs on other machines, where its own run directory is."""
    return (run_dir / ELSEWHERE).is_file()


def exit_code(run_dir: Path) -> int:
    """Return the exit code of a driver that has ended."""
    try:
        return int((run_dir / DRIVER / END).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return KILLED


def driver_of(run_dir: Path) -> JobDriver:
    """Return the driver of a run, perhaps one that has ended.

    Raises UserError if it is on another machine, or if there is no job.
    """
    if (record := driver_record(run_dir)) is None:
        return LaunchedDriver(run_dir)
    if record.job:
        return engine_named(record.scheduler).scheduled_driver(record.job)
    _require_here(run_dir, record.host)
    return ProcessDriver(record.process, run_dir)


def code_of(run_dir: Path) -> int:
    """Return the exit code of the driver of a run that has ended."""
    if driver_record(run_dir) is not None:
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
        processes = [RunningProcess(job.driver, job.driver_began)]
        began = _coordinators_in(self._run_dir)
        coordinator = process_of(int(began[-1]["pid"])) if began and is_being_written(self._run_dir / EVENTS) else None
        processes += [coordinator] if coordinator else []
        return [process for process in processes if process.lives and handles(process.pid, signal.SIGTERM)]


def _coordinators_in(run_dir: Path) -> Sequence[dict[str, Any]]:
    """Return the events with the machine and process of each coordinator."""
    return [event for event in read_journal(run_dir / EVENTS) if event["event"] == "began"]


def _end_of(run_dir: Path) -> dict[str, Any]:
    """Return the event that ended the last start of a job; empty if it goes on."""
    return next((event for event in reversed(read_journal(run_dir / EVENTS)) if event.get("phase") in ENDS), {})


def _require_here(run_dir: Path, host: str) -> None:
    if host != socket.gethostname():
        raise UserError(f"the run in {run_dir} was started on {host}; give this command there")
