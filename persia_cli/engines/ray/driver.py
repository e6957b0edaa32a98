"""The driver of a job on a Ray cluster: the process that runs it, apart from the command that shows it.

It has left the command's terminal, and what it says is in a file of the run directory, beside its process and, in the
end, its exit code. Ray's actors end with it, so whatever ends it ends the job, and nothing is left in the cluster.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from persia_cli.config.record import parsed, to_yaml
from persia_cli.data.read.facts import DatasetFacts
from persia_cli.disk import is_held, writing
from persia_cli.engines.background import END, LOG, PROCESS, exit_code, is_running, note_process, recorded_exit
from persia_cli.engines.background import send_signal as send_signal_to
from persia_cli.engines.job import DRIVEN, ERROR_LINE, JOB, SIGNALLED, has_begun, recorded_failure
from persia_cli.engines.processes import python_module
from persia_cli.errors import PersiaError, RoleError, UserError
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job, JobPlan, all_replicas
from persia_cli.storage.credentials import printable
from persia_cli.store.memory.memory_file import new_file

NAME = "driver"
GOES_ON = "the run in {0} still goes on; persia attach {0} shows it, persia stop ends it"
SUBMITTED_BY_RAY = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable of a command that was given to `ray job submit`: it is in the cluster, with no terminal."""


class DriverInput(msgspec.Struct, frozen=True):
    """What a command hands to the driver."""

    config: str
    """The run as YAML."""
    job: Job
    resumes: str | None
    words: list[str]
    """Those of the user, for proposed commands."""
    trace: str | None = None
    """The file into which the replicas' traces are joined."""


_INPUT = msgspec.json.Decoder(DriverInput)
_NOTE = msgspec.json.Decoder()


def is_submitted(environment: Mapping[str, str]) -> bool:
    """Return whether this command is to run its job itself: Ray has started it, and it outlives every terminal."""
    return SUBMITTED_BY_RAY in environment


def start_driver(
    plan: JobPlan, words: Sequence[str], trace: Path | None = None, flags: Sequence[str] = ()
) -> "RayDriver":
    """Start the driver of a job, which goes on when this process ends; raises UserError if the run has one."""
    is_new = not plan.run_dir.exists()
    lock = _locked(plan.run_dir)
    try:
        require_no_driver(plan.run_dir)
        with writing(plan.run_dir / DRIVEN):
            for ending in (PROCESS, END, LOG):
                (plan.run_dir / DRIVEN / f"{NAME}{ending}").unlink(missing_ok=True)
        process = _started(plan, words, trace, flags, lock)
    finally:
        os.close(lock)  # the driver has it from its first moment on
    return RayDriver(plan.run_dir, process, is_new)


def _started(
    plan: JobPlan, words: Sequence[str], trace: Path | None, flags: Sequence[str], lock: int
) -> "subprocess.Popen[bytes]":
    resumes = str(plan.resumes) if plan.resumes else None
    into = str(trace.absolute()) if trace else None
    given = DriverInput(to_yaml(plan.run), plan.job, resumes, [printable(word) for word in words], into)
    # Whole before the driver begins, so that it never gets half of it, whatever ends this process.
    source = new_file(NAME)
    try:
        os.write(source, msgspec.json.encode(given))
        os.lseek(source, 0, os.SEEK_SET)
        path = plan.run_dir / DRIVEN / f"{NAME}{LOG}"
        with writing(path), path.open("ab") as log:
            return subprocess.Popen(
                [*python_module("persia_cli"), *flags, "on-ray", "--run-dir", str(plan.run_dir), "--lock", str(lock)],
                stdin=source,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock,),
            )
    finally:
        os.close(source)


def _locked(run_dir: Path) -> int:
    """Return the open folder of a run's driver, locked; raises UserError if another process has it, and DiskError."""
    folder = run_dir / DRIVEN
    while True:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if is_held(lock):
                    raise UserError(GOES_ON.format(run_dir))
                if os.path.samestat(os.fstat(lock), folder.stat()):
                    return lock
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)  # whoever had it before has removed it


def require_no_driver(run_dir: Path) -> None:
    """Raise UserError if the job of a run goes on."""
    if _runs(run_dir / DRIVEN):
        raise UserError(GOES_ON.format(run_dir))


def take(source: BinaryIO) -> tuple[JobPlan, list[str], Path | None]:
    """Return the plan that a command has handed over, the user's words, and the file for the traces.

    The plan is without what only the command knows of the data.
    """
    given = _INPUT.decode(source.read())
    run, job = parsed(given.config, "standard input"), given.job
    facts = DatasetFacts(job.train_rows, job.eval_rows, 0, (), 0, "")
    resumes = Path(given.resumes) if given.resumes else None
    plan = JobPlan(run, facts, job, all_replicas(run), embedding_layout(run), resumes)
    return plan, given.words, Path(given.trace) if given.trace else None


@contextmanager
def driving(run_dir: Path, lock: int | None = None) -> Iterator[None]:
    """Note this process as the driver of a run, and in the end its exit code; raises UserError if there is another.

    `lock` is the folder as the command has locked it that has started this process.
    """
    folder = run_dir / DRIVEN
    if lock is None:
        lock = _locked(run_dir)
    else:
        os.set_inheritable(lock, False)
    try:
        (folder / f"{NAME}{END}").unlink(missing_ok=True)
        note_process(folder, NAME, os.getpid(), host=socket.gethostname())
        with recorded_exit(folder / f"{NAME}{END}"):
            yield
    finally:
        os.close(lock)


class RayDriver:
    """The driver of a run as a command on its machine sees it, which has started it or has found it."""

    def __init__(self, run_dir: Path, process: "subprocess.Popen[bytes] | None" = None, is_new: bool = False) -> None:
        """`is_new` says that the run directory was made for it."""
        self.run_dir, self._folder, self._process = run_dir, run_dir / DRIVEN, process
        self._is_new = is_new
        self.log = self._folder / f"{NAME}{LOG}"
        self._read = 0
        self._failure: list[str] = []
        """Lines from the error on that has ended it."""

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None if self._process else _runs(self._folder)

    @property
    def code(self) -> int:
        """Its exit code once it has ended, as a shell has it."""
        if self._process is None:
            return exit_code(self._folder, NAME)
        code = self._process.wait()
        return SIGNALLED - code if code < 0 else code

    @property
    def start(self) -> int | None:
        """Which start of the job it is at: another number for each, None before the first."""
        try:
            begun, noted = ((self.run_dir / JOB).stat(), (self._folder / f"{NAME}{PROCESS}").stat())
        except FileNotFoundError:
            return None
        return begun.st_mtime_ns if begun.st_mtime_ns >= noted.st_mtime_ns else None

    def signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self._process is None:
            send_signal_to(self._folder, NAME, number)
        else:
            self._process.send_signal(number)

    def said(self) -> list[str]:
        """Return the lines that it has said since the last call, up to the error that ends it."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._read)
                data, whole, _ = log.read().rpartition(b"\n")
        except FileNotFoundError:  # what Ray's job says goes to Ray
            return []
        self._read += len(data) + len(whole)
        lines = data.decode(errors="replace").splitlines()
        first = next((n for n, line in enumerate(lines) if line.startswith(ERROR_LINE)), len(lines))
        first = 0 if self._failure else first
        self._failure += lines[first:]
        return lines[:first]

    def failure(self) -> PersiaError | None:
        """Return the error that has ended it, if it has said one."""
        kind = UserError if self.code == UserError.exit_code else RoleError
        if self.code == SIGNALLED + signal.SIGKILL:
            return RoleError(
                f"the driver of the job was killed, and all has ended with it; persia resume {self.run_dir} goes on "
                "from the newest checkpoint"
            )
        if not self._failure:
            return recorded_failure(self.run_dir)
        # The error's own lines, and what it tells beside them.
        last = max(n for n, line in enumerate(self._failure) if line.startswith(ERROR_LINE)) + 1
        while last < len(self._failure) and self._failure[last].startswith(" "):
            last += 1
        error = kind("\n".join(line.removeprefix(ERROR_LINE) for line in self._failure[:last]))
        for note in self._failure[last:]:
            error.add_note(note)
        return error

    def forget(self) -> None:
        """Remove what is left of a driver that has begun nothing, unless another one drives the run by now."""
        with suppress(OSError, UserError):
            lock = _locked(self.run_dir)
            try:
                if has_begun(self.run_dir):
                    return
                for file in self._folder.iterdir():
                    file.unlink()
                self._folder.rmdir()
                if self._is_new:
                    self.run_dir.rmdir()
            finally:
                os.close(lock)


def _runs(folder: Path) -> bool:
    # One without a log is a command that runs its job itself, and may go on with others, as a sweep does.
    has_ended = (folder / f"{NAME}{END}").exists() and not (folder / f"{NAME}{LOG}").exists()
    return not has_ended and is_running(folder, NAME)


def driver_of(run_dir: Path) -> RayDriver | None:
    """Return the driver of a run on this machine, also one that has ended; None if it never had one.

    Raises UserError if it is on another machine.
    """
    try:
        known = _NOTE.decode((run_dir / DRIVEN / f"{NAME}{PROCESS}").read_bytes())
        host = str(known["host"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(f"{run_dir / DRIVEN / NAME}{PROCESS} is damaged: it does not say which process runs") from None
    if host != socket.gethostname():
        raise UserError(f"the job of {run_dir} was started on {host}; give this command there")
    return RayDriver(run_dir)
