"""An example of an engine: each replica is a child that `setsid` starts on this machine (CONTRIBUTING.md)."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from persia_cli.engines.child import failure_in
from persia_cli.engines.distributed import DistributedEngine
from persia_cli.plan.job import JobPlan, Replica


class SetsidEngine(DistributedEngine):
    """An engine of this machine; one of others has a scheduler's machines in the place of `ThisMachine`."""

    def machines(self, plan: JobPlan) -> AbstractContextManager["ThisMachine"]:
        """Enter the machines of one start of a job."""
        return nullcontext(ThisMachine())


class ThisMachine:
    """The machines of a job."""

    address = "127.0.0.1"

    def prepare(self, say: Callable[[str], None], meanwhile: Callable[[], None]) -> None:
        """Report that there is nothing to wait for."""
        say("setsid starts all replicas on this machine")

    def start(self, replica: Replica, arguments: list[str], given: str, log: Path) -> "SetsidReplica":
        """Start a replica's supervisor, `persia launch-role`."""
        return SetsidReplica([sys.executable, "-P", "-m", "persia_cli", *arguments], given, log)


class SetsidReplica:
    """A replica. Its supervisor ends, and the replica with it, when nothing can write to its input any more."""

    machine = "this machine"

    def __init__(self, command: list[str], given: str, log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["setsid", "--wait", *command], stdin=subprocess.PIPE, stdout=output, stderr=output, text=True
            )
        self._process.stdin.write(given)  # the job's keys
        self._process.stdin.flush()

    def poll(self) -> None:
        """Do nothing: the log is written by the process itself."""

    @property
    def code(self) -> int | None:
        """Exit code as a shell has it; None while the supervisor runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    @property
    def why(self) -> str:
        """The reason of its end."""
        return failure_in(self._log.read_text())

    def end(self) -> None:
        """End the replica."""
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        """Wait for the end."""
        self.end()
        self._process.wait(timeout=60.0)
