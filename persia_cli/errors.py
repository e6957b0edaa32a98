"""The kinds of errors that users see, their exit codes, and texts that messages share."""

from collections.abc import Iterable
from difflib import get_close_matches


class PersiaError(Exception):
    """A failure with a message for users, the sentence that the command line prints."""

    exit_code = 1
    """Exit code of the command: 2 for a mistake that the user can correct, 75 for a job that was stopped, else 1."""


class UserError(PersiaError):
    """A mistake that the user can correct; exit code 2."""

    exit_code = 2


class ConfigError(UserError):
    """One or more mistakes in a config or an override, one line each."""


class DataError(UserError):
    """A data file that is missing, damaged or different from its description in the config."""


class DiskError(UserError):
    """A file that is not writable: the disk is read-only, or not open to this user."""


class DiskFaultError(DiskError):
    """A disk that is full or fails, which is no mistake of the user: the same command may work later."""

    exit_code = PersiaError.exit_code


class CheckpointError(UserError):
    """A checkpoint that is missing, incomplete or of another model."""


class FormatError(CheckpointError):
    """A checkpoint of a format that another version of persia reads."""


class PreemptedError(PersiaError):
    """A signal ended the job early; exit code 75 (EX_TEMPFAIL of sysexits.h) means that it can be resumed."""

    exit_code = 75


class WireError(PersiaError):
    """A peer that is unreachable, does not answer, or refuses a request."""


class RoleError(PersiaError):
    """A replica that died, is stuck, was stopped, or behaves unexpectedly."""


class MemoryFileError(PersiaError):
    """Memory of an earlier process that cannot be recovered; the job has to go back to a checkpoint.

    Its exit code, by which a driver recognises it, is that of a replica's process and never that of a command.
    """

    exit_code = 74


class PoisonError(RoleError):
    """A request at which a replica's process has died more than once."""


class KilledError(RoleError):
    """The end of a job by a signal to one of its processes, `replica`, which had no other known failure."""

    def __init__(self, text: str, replica: str) -> None:
        super().__init__(text)
        self.replica = replica


class OrderlyEndError(PersiaError):
    """The end of a command without an error: its job was stopped, had been finished, or goes on without the command.

    The text has what is saved and how to continue.
    """

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def one_line(error: BaseException) -> str:
    """Return an error's text without line breaks and without a full stop."""
    return " ".join(str(error).split()).removesuffix(".")


def count(number: int, noun: str) -> str:
    """Return `1 step` or `12,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `did you mean x?` for the most similar of the known names, or all of them if none is similar."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a process that ends with an error."""
    if isinstance(error, KeyboardInterrupt):
        return 130  # as in shells after Ctrl-C
    code = error.code if isinstance(error, SystemExit) else getattr(error, "exit_code", PersiaError.exit_code)
    return code if isinstance(code, int) else int(code is not None)
