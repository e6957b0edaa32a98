"""A `persia` command as a child process, which ends with this process, and the lines that it reports."""

import atexit
import json
import os
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any

from persia_cli.engines.processes import PARENT, python_module
from persia_cli.errors import PersiaError

Line = dict[str, Any]
ERRORS = ("error: ", "internal error: ")
SAVING = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
"""Signals that end a training: the first saves the model; the others are those of further interrupts."""
AT_ONCE = (signal.SIGINT, signal.SIGKILL)
"""The same of a command that has nothing to save."""
LEAVING = (signal.SIGKILL,)
"""The same of a command that shows a job of another process, which goes on; nohup and some shells ignore others."""
STOPPED = (75, 130)
"""Exit codes of a job that was stopped: its model is saved, or it ended at once."""
RUNNING: "weakref.WeakSet[ChildCommand]" = weakref.WeakSet()


class ChildCommand:
    """A running command; iterating yields what it reports until it ends: events, metrics, and `text`.

    The kernel kills it when the thread that started it ends, so each has its own thread.
    """

    def __init__(self, arguments: list[str], signals: Sequence[signal.Signals] = AT_ONCE) -> None:
        """Start `persia ARGUMENTS`, which these signals end, one after another."""
        self._command = [*python_module("persia_cli"), "--log-format", "json", *map(str, arguments)]
        self._signals = signals
        self._lines: SimpleQueue[Line | None] = SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._begun, self._ended = threading.Event(), threading.Event()
        self._texts: list[str] = []
        self.stopped = False
        """True if this process has asked it to end."""
        self.code = PersiaError.exit_code
        """Exit code, once it has ended; minus a signal's number if that killed it."""
        self.output = ""
        """Its standard output, once it has ended."""
        threading.Thread(target=self._run, name="persia-child", daemon=True).start()
        self._begun.wait()
        RUNNING.add(self)

    def __iter__(self) -> Iterator[Line]:
        while (line := self._lines.get()) is not None:
            yield line
        self._lines.put(None)  # for the next that iterates

    @property
    def runs(self) -> bool:
        """True until it has ended."""
        return not self._ended.is_set()

    def ask_to_stop(self) -> None:
        """Ask it to end; this does not wait."""
        self._send(self._signals[0])

    def stop(self) -> None:
        """Ask it to end and wait for that; each Ctrl-C meanwhile ends it more harshly, and is raised in the end."""
        interrupt: KeyboardInterrupt | None = None
        for number in self._signals:
            self._send(number)
            try:
                self._ended.wait()
                break
            except KeyboardInterrupt as came:
                interrupt = came
        if interrupt is not None:
            raise interrupt

    def failure(self, codes: Sequence[int] = (0,)) -> PersiaError | None:
        """Return its error as an exception; None if it ended with one of these exit codes, or was stopped."""
        first = next((number for number, text in enumerate(self._texts) if text.startswith(ERRORS)), len(self._texts))
        is_stopped = self.stopped and (self.code < 0 or self.code in STOPPED)
        if is_stopped or (first == len(self._texts) and self.code in codes):
            return None
        errors = [text.partition(": ")[2] for text in self._texts[first:] if text.startswith(ERRORS)]
        death = f"the process of the command was killed by {signal.Signals(-self.code).name}" if self.code < 0 else ""
        last = self._texts[-1] if self._texts else f"the command ended with exit code {self.code}"
        error = PersiaError("\n".join(errors) or death or last)
        error.exit_code = max(self.code, PersiaError.exit_code)
        for text in self._texts[first:]:
            if not text.startswith(ERRORS):
                error.add_note(text)
        return error

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self.runs:
            self.stopped = True
            self._process.send_signal(number)

    def _run(self) -> None:
        """Start the process, pass on what it reports, and wait for its end."""
        environment = os.environ | {PARENT: str(os.getpid())}
        try:
            with tempfile.TemporaryFile() as output:
                # In its own session, so that only this process gets Ctrl-C.
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE,
                    env=environment, start_new_session=True,
                )  # fmt: skip
                self._begun.set()
                assert self._process.stderr is not None
                with self._process.stderr as reported:
                    for line in reported:
                        self._take(line.decode(errors="replace").rstrip("\n"))
                self.code = self._process.wait()
                output.seek(0)
                self.output = output.read().decode(errors="replace")
        except OSError as error:
            self._texts.append(f"error: the command cannot be started: {error}")
        finally:
            self._ended.set()
            self._begun.set()
            self._lines.put(None)

    def _take(self, text: str) -> None:
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        line = line if isinstance(line, dict) else {"text": text}
        if "event" not in line and "text" in line:
            self._texts.append(str(line["text"]))
        self._lines.put(line)


@atexit.register
def stop_all() -> None:
    """Stop the jobs that nothing waits for any more, since they cannot outlive this process."""
    for command in list(RUNNING):
        if command.runs:
            command.stop()
