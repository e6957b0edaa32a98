"""Supervisors: the parent of a replica's process knows how it ended, and starts the next if the coordinator says so."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from persia_cli.control.restarts import ended_how
from persia_cli.errors import KilledError, PreemptedError, RoleError, WireError
from persia_cli.launch.deaths import DeathReports
from persia_cli.launch.handed_over import descriptors
from persia_cli.launch.job import COORDINATOR_ADDRESS, SIGNALLED
from persia_cli.launch.processes import python_module
from persia_cli.launch.role import log_to_stderr
from persia_cli.launch.role_options import RoleOptions
from persia_cli.launch.signals import ENDING_SIGNALS
from persia_cli.plan.job import COORDINATOR, Replica
from persia_cli.plan.replacement import RESTARTED, TRUSTED, WITH_MEMORY, is_replaced
from persia_cli.store.memory.memory_file import new_file
from persia_cli.wire.job_messages import Death, Verdict
from persia_cli.wire.place import process_id

log = logging.getLogger(__name__)

POLL_S = 0.1
WELL = (0, PreemptedError.exit_code)
"""Exit codes of a process that has ended because its job has."""


class Supervised:
    """A replica's process, and those that take its place; `log` is what they write to, if that is a file.

    `start` starts the n-th process of the replica. Without `reports`, a death is final.
    """

    def __init__(
        self,
        replica: Replica,
        start: Callable[[int], "subprocess.Popen[bytes]"],
        log: Path,
        reports: DeathReports | None,
        memory: int | None = None,
    ) -> None:
        """`memory` is the file that the processes of the replica inherit, if they do."""
        self.replica, self.log = replica, log
        self._memory = memory
        self._start, self._reports = start, reports
        self.life = 1
        self._asked = False
        self._due_s: float | None = None
        self.final = ""
        """Why the coordinator wants no new process, if that is so."""
        self._begin()

    @property
    def may_return(self) -> bool:
        """True unless the end of the process is the replica's: a new one is asked for, or is to come."""
        code = self.process.poll()
        return (
            self._reports is not None
            and not self.final
            and code is not None
            and code not in WELL
            and is_replaced(self.replica.role, code, self._memory is not None)
        )

    @property
    def failed(self) -> bool:
        """True if the process has failed and no other will take its place."""
        return self.process.poll() not in (None, *WELL) and not self.may_return

    @property
    def ended_how(self) -> str:
        """A phrase for the end of the process."""
        return ended_how(self.process.returncode)

    def supervise(self) -> None:
        """Report the process's death, and start the next when it is due; to be called again and again."""
        if not self.may_return:
            return
        assert self._reports is not None
        if not self._asked:
            self._asked = True
            code: int = self.process.returncode
            log.warning("%s %s", self.replica.name, self.ended_how)
            self._reports.send(Death(self.replica.role, self.replica.index, self._id, code), self._heed)
        elif self._due_s is not None and time.monotonic() >= self._due_s:
            self.life += 1
            self._asked, self._due_s = False, None
            if self._memory is not None and self.process.returncode not in TRUSTED:
                # Who ends by a fault of its own may have written anything; the next process must not use it.
                os.ftruncate(self._memory, 0)
            self._begin()

    def _begin(self) -> None:
        self.process = self._start(self.life)
        self._id = process_id(self.process.pid)  # nobody can find it out once the process has been waited for

    def _heed(self, verdict: Verdict) -> None:
        if verdict.restart:
            self._due_s = time.monotonic() + verdict.after_s
        else:
            self.give_up(verdict.why)

    def give_up(self, why: str) -> None:
        """Take the process's end for the replica's."""
        self.final = why or f"{self.replica.name} {self.ended_how}"


def supervise_role(options: RoleOptions) -> None:
    """Run a replica as a child of this process until its job is over, with a new process for each that dies.

    Signals go on to the child. Raises SystemExit with its exit code if that is not 0, RoleError if it
    died and the coordinator wants no other.
    """
    name = f"{options.role}-{options.index}"
    log_to_stderr(f"{name} supervisor")
    reports = None
    memory = new_file(name) if options.role == WITH_MEMORY else None
    if options.role != COORDINATOR and (options.role in RESTARTED or memory is not None):
        reports = DeathReports(f"supervisor of {name}", lambda: options.coordinator, options.context)
    command = [*python_module("persia_cli"), "launch-role", *options.words(), "--parent", str(os.getpid())]
    command += memory_words(memory)
    inherited = (*descriptors([options.key_file]), *(() if memory is None else (memory,)))

    def start(life: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*command, "--life", str(life)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that Ctrl-C reaches it once, through this process
            pass_fds=inherited,
        )

    replica = Replica(options.role, options.index)
    try:
        child = Supervised(replica, start, Path(os.devnull), reports, memory)
        _watch(child, reports)
    finally:
        if reports is not None:
            reports.close()
    code = child.process.returncode
    if child.final and code < 0:
        # Whoever started this process is to know that its child was killed, so that the job may begin again.
        died = KilledError(child.final, name)
        died.exit_code = SIGNALLED - code
        raise died
    if child.final:
        raise RoleError(child.final)
    if code:
        sys.exit(SIGNALLED - code if code < 0 else code)


def _watch(child: Supervised, reports: DeathReports | None) -> None:
    """Supervise a replica until its end, or until SIGINT while it has no process; nothing of it runs on.

    A signal goes on to the process, or to the next one if none runs.
    """
    came: set[int] = set()
    for number in (signal.SIGINT, *ENDING_SIGNALS):
        signal.signal(number, lambda number, _: came.add(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)  # as `persia_cli.__main__` blocks them
    try:
        while child.process.poll() is None or (child.may_return and signal.SIGINT not in came):
            while came and child.process.poll() is None:
                child.process.send_signal(came.pop())
            child.supervise()
            _poll(reports, child)
            time.sleep(POLL_S)
    finally:
        if child.process.poll() is None:
            os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()


def address_in(run_dir: Path) -> str:
    """Return the address at which the coordinator of a run listens, or did until it died; empty if there is none."""
    try:
        return (run_dir / COORDINATOR_ADDRESS).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def memory_words(file: int | None) -> list[str]:
    """Return the words of `persia launch-role` for the memory file that a process inherits, if there is one."""
    return [] if file is None else ["--memory-file", str(file)]


def _poll(reports: DeathReports | None, child: Supervised) -> None:
    if reports is None:
        return
    try:
        reports.poll()
    except WireError as error:
        log.warning("%s", error)
        child.give_up("")
