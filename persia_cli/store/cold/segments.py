"""The files of a cold log: segments of blocks, written once from start to end."""

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.disk import disk_error
from persia_cli.errors import DiskFaultError
from persia_cli.store.cold.geometry import ColdGeometry

NAME = re.compile(r"segment-(\d+)")
Blocks = NDArray[np.uint64]


class Content(NamedTuple):
    """The properties of a segment that is not written any more, as checkpoints need them."""

    xxh128: str
    tables: NDArray[np.integer[Any]]
    """Table number of each record, of no records if all are of one table."""


class LogSegment:
    """One file; it stays readable, by its descriptor, after `remove` and until no one refers to it."""

    def __init__(self, path: Path, number: int, create: bool) -> None:
        """Open or create the file; raise DiskError."""
        self.path, self.number = path, number
        try:
            if create:
                # A checkpoint may have the file of this name too: its content must stay.
                path.unlink(missing_ok=True)
            self.file = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0), 0o666)
        except OSError as error:
            raise disk_error(error, path) from error
        self.nbytes = os.fstat(self.file).st_size
        self.content: Content | None = None
        """Set by the thread that writes the first checkpoint with this segment."""
        self.copy: int | None = None
        """A copy in a checkpoint, open; set by the thread that writes checkpoints."""
        # Records are read one by one: what is next to them is not needed.
        with suppress(OSError):
            os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        for file in (getattr(self, "file", None), getattr(self, "copy", None)):
            if file is not None:
                os.close(file)

    def append(self, blocks: Blocks) -> None:
        """Write blocks behind the last one; raise DiskError, after which only what was there before counts."""
        view, at = blocks.view(np.uint8).data, self.nbytes
        try:
            while view:
                written = os.pwrite(self.file, view, at)
                view, at = view[written:], at + written
        except OSError as error:
            raise disk_error(error, self.path) from error
        self.nbytes = at

    @property
    def is_alone(self) -> bool:
        """True if no other file, such as that of a checkpoint, has this content."""
        return os.fstat(self.file).st_nlink == 1

    def read(self, start: int, stop: int) -> Blocks:
        """Return bytes [start, stop) as uint64; raise DiskError if they cannot be read."""
        blocks = np.empty((stop - start) // 8, np.uint64)
        view, at = blocks.view(np.uint8).data, start
        with reading(self.path):
            while view:
                got = os.preadv(self.file, [view], at)
                if not got:
                    raise DiskFaultError(f"{self.path} is shorter than what was written; resume from a checkpoint")
                view, at = view[got:], at + got
        return blocks

    def seal(self) -> None:
        """Remove what a failed write has left behind the last block; the file does not change after this."""
        try:
            if os.fstat(self.file).st_size > self.nbytes:
                os.ftruncate(self.file, self.nbytes)
        except OSError as error:
            raise disk_error(error, self.path) from error

    def remove(self) -> None:
        """Remove the file; its content stays readable by `file`."""
        with suppress(FileNotFoundError):
            self.path.unlink()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise every OSError of the context as a DiskError that names the file."""
    try:
        yield
    except OSError as error:
        raise DiskFaultError(
            f"cannot read {path}: {error.strerror or error}; the disk may be failing: choose another "
            "embedding.cold.path"
        ) from error


def prepare_folder(folder: Path, keep: bool) -> list[LogSegment]:
    """Create a log's folder, and return the segments in it; without `keep`, remove them.

    Raise DiskError if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise disk_error(error, folder) from error
    files = [(folder / name, int(match[1])) for name in names if (match := NAME.fullmatch(name))]
    if not keep:
        for path, _ in files:
            path.unlink(missing_ok=True)
        return []
    return [LogSegment(path, number, create=False) for path, number in files]


def allow_files(count: int) -> None:
    """Raise this process's limit of open files by so many, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = soft + count if hard == resource.RLIM_INFINITY else min(hard, soft + count)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def blocks_in(size: ColdGeometry, segment: LogSegment) -> int:
    """Return the number of whole blocks of a segment."""
    return segment.nbytes // size.block_bytes
