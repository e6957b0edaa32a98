"""A control group with little memory, below the one that this process is in; the system lets root alone make one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from persia_cli.launch.memory_kills import counter_of
from tests.conftest import poll_for

LIMITS = {
    "memory.oom_control": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.usage_in_bytes"),
    "memory.events": ("memory.max", "memory.swap.max", "memory.current"),
}
"""By the file with the counter: the files with the limit, the limit of swap, and what is in use."""


class MemoryGroup:
    """A control group; processes are put into it, and all that they start is in it too."""

    def __init__(self, folder: Path, counter: str) -> None:
        self.folder, self._in_use = folder, LIMITS[counter][2]

    def take(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    @property
    def in_use(self) -> int:
        """Bytes, without what is only a copy of files on disk."""
        lines = (line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        cached = sum(int(size) for name, size in lines if name in ("total_inactive_file", "inactive_file"))
        return max(0, int((self.folder / self._in_use).read_text()) - cached)


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """Make a control group of so many bytes, and remove it in the end; skips the test where that is not allowed."""
    counter = counter_of()
    if counter is None:
        pytest.skip("the system does not say how often memory ran out")
    folder = counter.parent / f"persia-test-{os.getpid()}"
    files = LIMITS[counter.name]
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("control groups may not be made here")
    try:
        try:
            (folder / files[0]).write_text(str(limit))
        except OSError:
            pytest.skip("control groups of memory may not be made here")
        with suppress(OSError):
            (folder / files[1]).write_text(str(limit) if "memsw" in files[1] else "0")
        yield MemoryGroup(folder, counter.name)
    finally:
        poll_for(lambda: not (folder / "cgroup.procs").read_text(), 30.0, "the end of all processes of the group")
        folder.rmdir()
