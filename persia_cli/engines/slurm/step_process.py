"""A step under way: the process of srun, which ends as the replica does, and passes on what it says."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from persia_cli.disk import rename, writing
from persia_cli.engines.hosts.remote import last_words
from persia_cli.engines.job import SIGNALLED
from persia_cli.errors import PersiaError, PreemptedError, RoleError, UserError
from persia_cli.store.memory.memory_file import new_file

WELL = (0, PreemptedError.exit_code)
LISTENING = re.compile(r"^listening at (\S+)$", re.MULTILINE)
BY_SRUN = "srun: error: "
"""Begin of what srun itself says; it ends so where a step cannot begin, or its machine is lost."""
TAIL_LINES = 20
TWICE_S = 0.2
"""Seconds between two SIGINT, which have srun end the step; it takes them together within one second."""


class StepProcess:
    """The step of one replica on a machine; its log is a file beside it."""

    def __init__(self, name: str, node: str, command: Sequence[str], given: str, log: Path) -> None:
        """Start it; `given` is what its standard input has: no file, and no word of a command line."""
        self.name, self.node, self.log = name, node, log
        secret = new_file(name)
        try:
            os.write(secret, given.encode())
            os.lseek(secret, 0, os.SEEK_SET)
            with writing(log), log.open("ab") as output:
                self._begin = output.tell()
                # A session of its own: Ctrl-C is for this process.
                self._process = subprocess.Popen(
                    command, stdin=secret, stdout=output, stderr=output, start_new_session=True
                )
        finally:
            os.close(secret)

    @property
    def exit_code(self) -> int | None:
        """Of the replica's supervisor, or of srun; None while it runs."""
        code = self._process.poll()
        return SIGNALLED - code if code is not None and code < 0 else code

    @property
    def is_lost(self) -> bool:
        """True if it was killed, or its machine is gone, so that the replica itself has not said why it ended."""
        code = self.exit_code
        if code is None or code in (*WELL, UserError.exit_code):
            return False
        return code > SIGNALLED or last_words(self.said).startswith(BY_SRUN)

    @property
    def said(self) -> str:
        """What the replica and srun have said since this process began."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._begin)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    @property
    def listens_at(self) -> str:
        """The address that a coordinator has printed; empty before."""
        found = LISTENING.search(self.said)
        return found[1] if found else ""

    def move_log(self, path: Path) -> None:
        """Give the log another place; what is said goes there from now on. Raises DiskError."""
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            rename(self.log, path)
        self.log = path

    def signal(self, number: int) -> None:
        """Send the replica a signal; srun passes it on, but for SIGINT."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def end(self) -> None:
        """Have srun kill the replica."""
        self.signal(signal.SIGINT)
        time.sleep(TWICE_S)
        self.signal(signal.SIGINT)

    def close(self) -> None:
        """Kill srun itself, if it has not ended."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def failure(self) -> PersiaError:
        """Return why it ended, with its replica and machine."""
        code = self.exit_code
        kind = UserError if code == UserError.exit_code else RoleError
        said = self.said
        why = last_words(said)
        if code is not None and code > SIGNALLED:
            why = f"was ended by signal {code - SIGNALLED}"
        error = kind(f"{self.name} on {self.node}: {why}")
        if kind is RoleError:
            error.add_note(self.tail())
        return error

    def tail(self) -> str:
        """Return the last lines of the log, for people."""
        lines = self.said.splitlines()[-TAIL_LINES:]
        return f"The end of the log of {self.name} on {self.node}:\n" + "\n".join(f"  {line}" for line in lines)
