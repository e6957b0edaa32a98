"""The account that an embedding server keeps during a drill: every update that it applies, as it does so.

There is an account while the run directory has the folder `drill`, which `persia drill` makes. Each server writes into
a file that it has mapped, so what is written stays when the process is killed, whatever becomes of its disk's room.
"""

import mmap
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from persia_cli.control.watermarks import Watermarks

FOLDER = "drill"
"""Folder of a run directory with a file for each server; while it is there, servers keep accounts."""
SUFFIX = ".updates"

HEAD = struct.Struct("<q")
"""Number of entries that are whole."""
ENTRY = struct.Struct("<HHIqqq")
"""Kind, rank, nothing, step, nanoseconds since 1970, and a number whose meaning depends on the kind."""
FIRST = 64
"""Where the entries begin."""
MOST = 1 << 21
"""Entries that a file has room for: 64 MiB, and about a million updates."""
LEFT_OUT = struct.Struct("<q")
"""Number of entries for which there was no room, after the head."""

FRESH, KEPT, OPENED, KNOWN, BEGUN, APPLIED = range(1, 7)
"""Kinds of entries. A process begins with rows up to `step` (FRESH), with the memory of one before it (KEPT; the number
is how many updates that memory has), or has been running when the account begins (OPENED). What its windows say then
follows: each rank's last applied step (KNOWN, number 0), and those above it (KNOWN, number 1). An update of a rank
begins (BEGUN; the number is how many updates the server has applied before it), and is applied (APPLIED)."""


class UpdateAccount:
    """The account of one server's process; all calls come from one thread. It costs next to nothing while closed."""

    def __init__(self, run_dir: str, name: str, watermarks: Watermarks) -> None:
        self._path = Path(run_dir) / FOLDER / f"{name}{SUFFIX}"
        self._watermarks = watermarks
        self._file = -1
        self._map: mmap.mmap | None = None
        self._entries = self._left_out = 0

    def start(self, kind: int, step: int = 0, number: int = 0) -> None:
        """Begin the account of a process that starts, if accounts are kept: FRESH or KEPT."""
        if self._open():
            self._begin(kind, step, number)

    def look(self) -> None:
        """Begin or end the account if the folder has come or gone; to be called now and then."""
        if self._map is not None and not self._is_there():
            self.close()
        if self._map is None and self._open():
            self._begin(OPENED)

    def note(self, kind: int, step: int, ranks: Sequence[int], applied: int = 0) -> None:
        """Note that an update of these ranks begins, or is applied."""
        if self._map is not None:
            for rank in ranks:
                self._write(kind, rank, step, applied)

    def close(self) -> None:
        """Write no more."""
        if self._map is not None:
            self._map.close()
            os.close(self._file)
            self._map = None

    def _begin(self, kind: int, step: int = 0, number: int = 0) -> None:
        self._write(kind, 0, step, number)
        for rank, window in enumerate(self._watermarks.windows):
            self._write(KNOWN, rank, window.watermark, 0)
            for above in sorted(window.above):
                self._write(KNOWN, rank, above, 1)

    def _open(self) -> bool:
        """Open the file if its folder is there; entries of processes before this one stay."""
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            # Room that is there: a write to a mapped file on a full disk would kill the process.
            os.posix_fallocate(self._file, 0, FIRST + MOST * ENTRY.size)
            self._map = mmap.mmap(self._file, FIRST + MOST * ENTRY.size)
        except OSError:
            os.close(self._file)
            return False
        [self._entries] = HEAD.unpack_from(self._map, 0)
        [self._left_out] = LEFT_OUT.unpack_from(self._map, HEAD.size)
        return True

    def _is_there(self) -> bool:
        """Return whether the file that is open still has its name; while it is open no other has its number."""
        try:
            found = self._path.stat()
        except OSError:
            return False
        return found.st_ino == os.fstat(self._file).st_ino

    def _write(self, kind: int, rank: int, step: int, number: int) -> None:
        assert self._map is not None
        if self._entries == MOST:
            self._left_out += 1
            LEFT_OUT.pack_into(self._map, HEAD.size, self._left_out)
            return
        ENTRY.pack_into(self._map, FIRST + self._entries * ENTRY.size, kind, rank, 0, step, time.time_ns(), number)
        self._entries += 1
        HEAD.pack_into(self._map, 0, self._entries)
