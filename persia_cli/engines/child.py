"""A replica whose supervisor is a child of this process, perhaps at the other end of ssh or srun."""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from persia_cli.disk import writing
from persia_cli.engines.job import ERROR_LINE, SIGNALLED

LOST = 255
"""Exit code of a replica whose machine, or the connection to it, is lost. It is that of ssh."""


def failure_in(text: str) -> str:
    """Return why a command failed, by what it has written: its errors, or else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix(ERROR_LINE) for line in lines if line.startswith(ERROR_LINE)]
    return "; ".join(errors) if errors else (lines[-1] if lines else "it printed nothing")


def is_lost_by_ssh(code: int, text: str) -> bool:
    """Return whether ssh itself has failed."""
    return code == LOST


class Child:
    """The supervisor of a replica. It runs for as long as its standard input is open."""

    def __init__(
        self,
        machine: str,
        command: Sequence[str],
        given: str,
        log: Path,
        is_lost: Callable[[int, str], bool] = is_lost_by_ssh,
    ) -> None:
        """Start it; `given` is the beginning of its input, and `log` gets its output.

        `is_lost` decides by the exit code and the output whether its machine was lost.
        """
        self.machine, self._log, self._is_lost = machine, log, is_lost
        with writing(log), log.open("ab") as output:
            self._begin = output.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
            )
        assert self._process.stdin is not None
        self._input = self._process.stdin
        with suppress(BrokenPipeError):  # the log has the reason
            self._input.write(given.encode())
            self._input.flush()

    def poll(self) -> None:
        """Do nothing: a child needs no help."""

    @property
    def code(self) -> int | None:
        """Exit code as a shell has it, LOST if the machine is lost, None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if code < 0:
            return SIGNALLED - code
        return LOST if code and self._is_lost(code, self._output) else code

    @property
    def why(self) -> str:
        """The reason of its end, as text."""
        return failure_in(self._output)

    @property
    def _output(self) -> str:
        try:
            with self._log.open("rb") as file:
                file.seek(self._begin)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def end(self) -> None:
        """End the replica, by the end of the supervisor's input."""
        with suppress(BrokenPipeError):
            self._input.close()

    def close(self) -> None:
        """Kill what still runs here."""
        self.end()
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
