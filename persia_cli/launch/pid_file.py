"""The file in which a supervisor notes its replica's process, for the supervisor that is started in its place.

The supervisor and the process hold a lock on it. So who gets the lock and finds a process noted knows that both were
killed: one that ends by itself notes that. Engines that start a command again where it was, such as Kubernetes a
container in its pod, have a replica go on in this way.
"""

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from persia_cli.disk import writing
from persia_cli.errors import UserError
from persia_cli.wire.parts import ProcessId

LOCKED_S = 10.0
"""Seconds in which the process of a supervisor that was killed has surely died with it."""
POLL_S = 0.05
MOST_BYTES = 4096


class Noted(msgspec.Struct, frozen=True):
    """A process of a replica in the job of a coordinator."""

    coordinator: str
    process: ProcessId
    life: int


_DECODER = msgspec.json.Decoder(Noted)


def noted_in(text: bytes) -> Noted | None:
    """Return the process that a file notes, None if it notes none."""
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError:
        return None


@dataclass(frozen=True, slots=True)
class PidFile:
    """The open file, locked; `descriptor` is for the replica's processes to inherit, with the lock."""

    path: Path
    descriptor: int

    @classmethod
    def locked(cls, path: Path, name: str) -> "PidFile":
        """Open and lock the file of a replica; raises UserError if another process or user has it, and DiskError."""
        # A file that was handed over open is a link there, and the only one that nobody else can have made.
        links = 0 if path.is_relative_to("/proc/self/fd") else os.O_NOFOLLOW
        with writing(path):
            file = cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | links, 0o600))
        if os.fstat(file.descriptor).st_uid != os.geteuid():
            file.close()
            raise UserError(f"--pid-file {path} belongs to another user; choose a file in a folder of your own")
        deadline = time.monotonic() + LOCKED_S
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            if time.monotonic() > deadline:
                file.close()
                raise UserError(f"--pid-file {path}: {name} is running here already, in another process")
            time.sleep(POLL_S)

    def killed(self, coordinator: str) -> Noted | None:
        """Return the process that was killed with its supervisor, if it was of this coordinator's job."""
        noted = noted_in(os.pread(self.descriptor, MOST_BYTES, 0))
        return noted if noted is not None and noted.coordinator == coordinator else None

    def note(self, coordinator: str, process: ProcessId, life: int) -> None:
        """Note the process that runs from now on; raises DiskError."""
        with writing(self.path):
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, msgspec.json.encode(Noted(coordinator, process, life)), 0)

    def clear(self) -> None:
        """Note that no process runs any more, and remove the file; whoever waits for its lock finds nothing noted."""
        with suppress(OSError):
            os.ftruncate(self.descriptor, 0)
            self.path.unlink()
        self.close()

    def close(self) -> None:
        """Close the file; the lock stays with the processes that inherited it."""
        os.close(self.descriptor)
