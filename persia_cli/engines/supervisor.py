"""The parent of a replica's process: it reports how that ended, and starts the next if the coordinator agrees."""

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from persia_cli.control.restarts import TRUSTED, WITH_MEMORY, ended_how, may_be_replaced
from persia_cli.disk import writing
from persia_cli.engines.driver_input import descriptors
from persia_cli.engines.job import SIGNALLED
from persia_cli.engines.processes import python_module
from persia_cli.engines.role import log_to_stderr
from persia_cli.engines.role_options import RoleOptions
from persia_cli.engines.signals import ENDING_SIGNALS
from persia_cli.errors import KilledError, PreemptedError, RoleError, WireError
from persia_cli.plan.job import COORDINATOR
from persia_cli.store.memory_file import new_file
from persia_cli.wire.job_messages import Death, Verdict
from persia_cli.wire.loop import Loop, identity_of
from persia_cli.wire.process import process_id, this_process
from persia_cli.wire.sockets import Context

log = logging.getLogger(__name__)

POLL_S = 0.1
VERDICT_S = 20.0
"""Seconds of silence of the coordinator after which a death is final."""
CLEAN_EXITS = (0, PreemptedError.exit_code)
"""Exit codes of a process that has ended because its job has."""


class DeathReports:
    """A supervisor's client of the coordinator, which connects at the first death; all on one thread."""

    def __init__(self, name: str, address: Callable[[], str], context: Callable[[], Context]) -> None:
        self._name, self._address, self._new_context = name, address, context
        self._context: Context | None = None
        self._loop: Loop | None = None

    def send(self, death: Death, on_verdict: Callable[[Verdict], None]) -> None:
        """Report a death; `on_verdict` is called while `poll` runs."""
        if self._loop is None:
            self._context = self._new_context()
            self._loop = Loop(self._context, self._name)
            identity = identity_of(self._name, this_process())
            self._client = self._loop.connect(self._address(), "coordinator", identity, 0.5, VERDICT_S)
        self._client.request(death, on_reply=on_verdict, waiting_for=f"its word on {death.role}-{death.index}")

    def poll(self) -> None:
        """Receive what has come; raises WireError if the coordinator has exited or refuses the report."""
        if self._loop is not None:
            self._loop.poll(0.0)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._loop is not None and self._context is not None:
            self._loop.close()
            self._context.destroy(linger=0)
        self._loop = self._context = None


class Supervised:
    """A replica's process, and those that take its place.

    Each leads a new session, so that Ctrl-C reaches it only through this process, and ends with this process.
    """

    def __init__(
        self, options: RoleOptions, reports: DeathReports | None, retains_memory: bool = False, log: Path | None = None
    ) -> None:
        """Start the first process. Without `reports`, a death is final.

        With `retains_memory`, all processes inherit one memory file. They write to `log`, else to where this one does.
        """
        self.options, self.log = options, log
        self._reports = reports
        self._memory = new_file(options.name) if retains_memory else None
        self._is_reported = False
        self._due_s: float | None = None
        self.incarnation = 1
        """Number of the process among those that this supervisor started, from 1."""
        self.given_up_because = ""
        """Reason for which no other process will start; empty while one may."""
        self._begin()

    def _begin(self) -> None:
        self.process = self._start()
        self._id = process_id(self.process.pid)  # it cannot be found out once the process has been waited for

    def _start(self) -> "subprocess.Popen[bytes]":
        arguments = ["launch-role", *self.options.arguments(), "--parent", str(os.getpid())]
        arguments += ["--incarnation", str(self.incarnation)]
        inherited = descriptors([self.options.key_file])
        if self._memory is not None:
            arguments += ["--memory-file", str(self._memory)]
            inherited = (*inherited, self._memory)
        with ExitStack() as stack:
            output = None
            if self.log is not None:
                stack.enter_context(writing(self.log))
                output = stack.enter_context(self.log.open("ab"))
            return subprocess.Popen(
                [*python_module("persia_cli"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=inherited,
            )

    @property
    def may_return(self) -> bool:
        """True unless the end of the process is the replica's: a new one is asked for, or is to come."""
        code = self.process.poll()
        return (
            self._reports is not None
            and not self.given_up_because
            and code is not None
            and code not in CLEAN_EXITS
            and may_be_replaced(self.options.role, code, self._memory is not None)
        )

    @property
    def failed(self) -> bool:
        """True if the process has failed and no other will take its place."""
        return self.process.poll() not in (None, *CLEAN_EXITS) and not self.may_return

    @property
    def ended_how(self) -> str:
        """A phrase for the end of the process."""
        return ended_how(self.process.returncode)

    def supervise(self) -> None:
        """Report the process's death, and start the next when it is due; to be called again and again."""
        if not self.may_return:
            return
        assert self._reports is not None
        if not self._is_reported:
            self._is_reported = True
            code: int = self.process.returncode
            log.info("%s %s", self.options.name, self.ended_how)
            self._reports.send(Death(self.options.role, self.options.index, self._id, code), self._obey)
        elif self._due_s is not None and time.monotonic() >= self._due_s:
            self.incarnation += 1
            self._is_reported, self._due_s = False, None
            if self._memory is not None and self.process.returncode not in TRUSTED:
                # A process that ends by its own fault may have written anything, so the next does not use it.
                os.ftruncate(self._memory, 0)
            self._begin()

    def _obey(self, verdict: Verdict) -> None:
        if verdict.restart:
            self._due_s = time.monotonic() + verdict.after_s
        else:
            self.give_up(verdict.why)

    def give_up(self, why: str = "") -> None:
        """Start no other process, for the coordinator's reason `why` or, by default, because of this one's end."""
        self.given_up_because = why or f"{self.options.name} {self.ended_how}"

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal, if it runs."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def close(self) -> None:
        """Kill the process if it runs, with its children, such as a compiler; then let go of its memory."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None


def supervise(replicas: Sequence[Supervised], reports: DeathReports) -> None:
    """Replace processes that have died, where the coordinator wants that; to be called again and again."""
    for replica in replicas:
        replica.supervise()
    try:
        reports.poll()
    except WireError as error:
        log.warning("%s", error)
        for replica in replicas:
            if replica.may_return:
                replica.give_up()


def supervise_role(options: RoleOptions, attached_to: int | None = None) -> None:
    """Run a replica as a child of this process until its job is over, with a new process for each that dies.

    The replica ends when no process can write to the file `attached_to` any more: its driver has ended, or is cut off.

    Signals go on to the child. Raises SystemExit with its exit code if that is not 0, RoleError if it
    died and the coordinator wants no other.
    """
    log_to_stderr(f"{options.name} supervisor")
    reports = DeathReports(f"supervisor of {options.name}", lambda: options.coordinator, options.context)
    is_final = options.role == COORDINATOR
    child = Supervised(options, None if is_final else reports, retains_memory=options.role == WITH_MEMORY)
    try:
        _watch(child, reports, attached_to)
    finally:
        child.close()
        reports.close()
    code = child.process.returncode
    if child.given_up_because and code < 0:
        # Another process starts the job again after this exit code.
        died = KilledError(child.given_up_because, options.name)
        died.exit_code = SIGNALLED - code
        raise died
    if child.given_up_because:
        raise RoleError(child.given_up_because)
    if code:
        sys.exit(SIGNALLED - code if code < 0 else code)


def _watch(child: Supervised, reports: DeathReports, attached_to: int | None) -> None:
    """Supervise a replica until its end, until SIGINT while it has no process, or until its driver has exited.

    A signal goes on to the process, or to the next one if none runs.
    """
    came: set[signal.Signals] = set()
    for number in (signal.SIGINT, *ENDING_SIGNALS):
        signal.signal(number, lambda number, _: came.add(signal.Signals(number)))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)  # as `persia_cli.__main__` blocks them
    while child.process.poll() is None or (child.may_return and signal.SIGINT not in came):
        while came and child.process.poll() is None:
            child.signal(came.pop())
        supervise([child], reports)
        if attached_to is not None and _has_ended(attached_to):
            raise RoleError(f"{child.options.name} ends, since the driver of its job has ended it, or is cut off")
        time.sleep(POLL_S)


def _has_ended(file: int) -> bool:
    """Return whether no process can write to the other end of a pipe any more."""
    return bool(select.select([file], [], [], 0)[0]) and not os.read(file, 1)
