"""Standard output and error of a command, which may end or be full before the command has ended.

- A pipe without a reader, or a terminal that is closed, gets no more output, and the command goes on.
- While a job runs, such output goes to a log of its run, except that of a terminal.
- Where a disk is full, lines are lost until there is space again; data on stdout that no job records are an error.
"""

import errno
import io
import os
import sys
from contextlib import suppress
from pathlib import Path

LOG = "command.log"
"""Name of the log of what a command could not print."""
FULL = (errno.ENOSPC, errno.EDQUOT)
_log: Path | None = None


class Stream(io.TextIOWrapper):
    """A standard stream that outlives its reader."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        """Take the place of a stream of the interpreter, which is not used any more."""
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        self._name = stream.name
        self.is_terminal = stream.isatty()
        """True if it was opened on a terminal, which may be closed by now."""
        self._gap = ""
        self.ended = ""
        """The reason why the output goes elsewhere; empty while it does not."""
        self.lost: OSError | None = None
        """The error that has lost data on stdout."""

    def write(self, text: str) -> int:
        """Write text to the stream, or to what has taken its place."""
        try:
            if self._gap:
                super().write(f"(lines are missing here: {self._gap})\n")
                super().flush()
                self._gap = ""
            return super().write(text)
        except OSError as error:
            self._handle(error)
            if self.ended and self.write_through:  # nothing has buffered the text
                with suppress(OSError):
                    super().write(text)
            return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            super().flush()
        except OSError as error:
            self._handle(error)

    def _handle(self, error: OSError) -> None:
        is_data = self._name == "<stdout>" and _log is None
        if error.errno in FULL and not is_data:
            self._gap = os.strerror(error.errno)
            return
        if is_data and not isinstance(error, BrokenPipeError | ConnectionResetError):
            self.lost = OSError(error.errno, error.strerror, self._name)
        self.end(str(error.strerror))

    def end(self, why: str) -> None:
        """Send all further output, and what is buffered, to the log of the job, or nowhere."""
        self.ended = why
        to = os.open(os.devnull, os.O_WRONLY)
        if _log is not None and not self.is_terminal:
            with suppress(OSError):
                log = os.open(_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                os.dup2(log, to)
                os.close(log)
                os.write(to, f"{self._name} has ended ({why}); this is the rest of it\n".encode())
        os.dup2(to, self.fileno())
        os.close(to)
        with suppress(OSError):
            super().flush()


def outlive_readers() -> None:
    """Have this process go on when a reader of its output ends."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, Stream(stream))


def require_printed() -> None:
    """Raise OSError if data on stdout were lost, though it has a reader."""
    for stream in _streams():
        stream.flush()
        if stream.lost:
            raise stream.lost


def keep_output(folder: Path) -> None:
    """From now on keep output that cannot be printed in a log in this folder of a run."""
    global _log
    _log = folder.absolute() / LOG
    for stream in _streams():
        if stream.ended:
            stream.end(stream.ended)


def leave_terminal() -> None:
    """Send the output that would go to a terminal nowhere, since writing to one that is closed is an error."""
    for stream in _streams():
        if stream.is_terminal:
            stream.end("the terminal is closed")


def has_no_reader() -> bool:
    """Return whether nothing reads what this command prints on stderr any more."""
    return any(stream.ended for stream in _streams() if stream is sys.stderr)


def _streams() -> list[Stream]:
    return [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, Stream)]
