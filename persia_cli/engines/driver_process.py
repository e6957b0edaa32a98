"""The driver of a run: the process that runs a job on several machines, apart from the command that shows it.

It is next to the coordinator. A folder of the run directory has its process, its log and, in the end, its exit code.
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

import msgspec

from persia_cli.disk import is_held, write_whole, writing
from persia_cli.engines.processes import python_module
from persia_cli.engines.resumed import DRIVER
from persia_cli.engines.running import RunningProcess, process_of
from persia_cli.engines.signals import ENDING_SIGNALS
from persia_cli.errors import UserError, exit_code_of
from persia_cli.store.memory_file import new_file

LOG, NOTE, END = "driver.log", "driver.json", "driver.end"
ELSEWHERE = "hosts.json"
"""File of a run directory with the place of the run on the first host, if its driver is there."""
KILLED = 128 + signal.SIGKILL
"""Exit code of a driver that could not leave one."""
GOES_ON = "the run in {0} still goes on; persia attach {0} shows it, persia stop {0} ends it"


@dataclass(frozen=True)
class DriverNote:
    """The driver of a run, as its run directory names it."""

    host: str
    process: RunningProcess
    scheduler: str
    """Kind of the engine whose scheduler runs the driver; empty if none does."""
    job: str
    """The scheduler's name of the job whose script the driver is."""


_DECODER = msgspec.json.Decoder(DriverNote)


def start_driver(
    run_dir: Path, words: Sequence[str], given: str, flags: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """Start the driver of a run, which goes on when this process ends; `given` is its input.

    Raises UserError if the run has a driver.
    """
    lock = _locked(run_dir)
    # Whole before the driver begins, so that it never gets a half of it, however this process ends.
    source = new_file("driver")
    try:
        _remove_note(run_dir)
        os.write(source, given.encode())
        os.lseek(source, 0, os.SEEK_SET)
        log = run_dir / DRIVER / LOG
        with writing(log), log.open("wb") as output:
            command = [*python_module("persia_cli"), *flags, "drive", "--run-dir", str(run_dir), "--lock", str(lock)]
            # The driver begins with these signals blocked, so they wait until it can handle them.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
            try:
                process = subprocess.Popen(
                    [*command, *words],
                    stdin=source,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _note(run_dir, process.pid)
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
    _remove_note(run_dir)
    (run_dir / ELSEWHERE).unlink(missing_ok=True)


def _remove_note(run_dir: Path) -> None:
    for name in (NOTE, END):
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
        _note(run_dir, os.getpid(), scheduler, job)
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


def note_queued(run_dir: Path, scheduler: str, job: str) -> None:
    """Note the job of a scheduler whose script will be the driver of a run."""
    with writing(run_dir / DRIVER):
        (run_dir / DRIVER).mkdir(parents=True, exist_ok=True)
    _remove_note(run_dir)
    _write(run_dir, DriverNote("", RunningProcess(0, 0), scheduler, job))


def _note(run_dir: Path, pid: int, scheduler: str = "", job: str = "") -> None:
    process = process_of(pid) or RunningProcess(pid, 0)
    _write(run_dir, DriverNote(socket.gethostname(), process, scheduler, job))


def _write(run_dir: Path, driver: DriverNote) -> None:
    write_whole(run_dir / DRIVER / NOTE, json.dumps(asdict(driver)) + "\n")


def note_of(run_dir: Path) -> DriverNote | None:
    """Return the note on the driver of a run; None if the run has none."""
    path = run_dir / DRIVER / NOTE
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
