"""The epochs of a run: each coordinator that is ever started for it takes the next, and only the newest may work."""

import json
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path

from persia_cli.disk import is_held, rename, sync, writing
from persia_cli.errors import RoleError, UserError

EPOCHS = "epochs"
"""Folder of a run directory with one file for each epoch, named by its number."""


class SupersededError(RoleError):
    """Another coordinator has taken the job over; this one may neither write nor end anything any more."""


class Epoch:
    """The epoch of this process, from its making to `close` or to the end of the process.

    Its file appears under its name, complete and locked, or not at all. Of several processes that want the same number
    one gets it. Where the file system has locks, nobody takes an epoch while the process of the newest one lives. Where
    it has none, the process before sees that it is `superseded`.
    """

    def __init__(self, run_dir: Path) -> None:
        """Take the next epoch of a run. Raises UserError if the run has a coordinator, DiskError."""
        self._folder = run_dir / EPOCHS
        with writing(self._folder):
            self._folder.mkdir(exist_ok=True)
            newest = _newest(self._folder)
            if newest and _is_alive(self._folder / str(newest)):
                raise self._refusal(newest)
            self.number = newest + 1
            self._file = self._take()

    def _take(self) -> int:
        own = {"host": socket.gethostname(), "pid": os.getpid(), "time": round(time.time(), 6)}
        draft = self._folder / f"{secrets.token_hex(8)}.part"
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            with suppress(OSError):
                is_held(file)
            os.write(file, json.dumps(own).encode() + b"\n")
            rename(draft, self._folder / str(self.number), overwrite=False)
            sync(self._folder)
        except BaseException as error:
            os.close(file)
            draft.unlink(missing_ok=True)
            if isinstance(error, FileExistsError):
                raise self._refusal(self.number) from None
            raise
        return file

    def _refusal(self, number: int) -> UserError:
        try:
            holder = json.loads((self._folder / str(number)).read_bytes())
            who = f"process {holder['pid']} on {holder['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            who = "another process"
        return UserError(f"{who} coordinates the run in {self._folder.parent}; a run has one coordinator at a time")

    @property
    def superseded(self) -> bool:
        """True if another process has taken the next epoch."""
        return (self._folder / str(self.number + 1)).exists()

    def require_newest(self) -> None:
        """Raise SupersededError if another process coordinates the run now."""
        if self.superseded:
            raise SupersededError(
                f"another coordinator has taken the run in {self._folder.parent} over (epoch {self.number + 1}), "
                f"so this one (epoch {self.number}) ends and changes nothing more"
            )

    def close(self) -> None:
        """Let others take the next epoch."""
        os.close(self._file)


def _newest(folder: Path) -> int:
    """Return the number of the newest epoch, 0 if there is none."""
    return max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=0)


def _is_alive(file: Path) -> bool:
    """Return whether the process of an epoch holds its lock; False where files cannot be locked."""
    try:
        with file.open("rb") as epoch:
            return is_held(epoch.fileno())
    except OSError:
        return False
