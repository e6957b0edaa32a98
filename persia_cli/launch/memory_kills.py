"""Kills for lack of memory: how often the system has killed a process of the control group that this process is in."""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

OWN = Path("/proc/self")
COUNTERS = {"cgroup": "memory.oom_control", "cgroup2": "memory.events"}
"""The file with the counter, by the kind of control group; one of version 1 comes first where both are mounted."""
FIELD = "oom_kill"
ENDING_S = 60.0
"""Seconds that a process with much memory may take to end once it is killed."""


class MemoryKills:
    """Tells deaths for lack of memory from other deaths by SIGKILL, among the children of this process.

    Children are taken to be in the same control group. A kill explains one death; one that explains none within
    ENDING_S was of a process that is nobody's here. The system counts, and does not say whom it has killed: where
    children of several processes are in one group, a kill of one's child explains, within ENDING_S, a death of
    another's by other hands. So what this says is probable, not certain.
    """

    def __init__(self, counter: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`counter` is the file with the counter, None if there is none."""
        self._counter, self._clock = counter, clock
        self._count = self._read()
        self._unexplained: deque[float] = deque()
        """When the kills were seen that have explained no death."""

    def look(self) -> None:
        """Note kills since the last look; to be called again and again."""
        count = self._read()
        if count is not None and self._count is not None:
            self._unexplained.extend([self._clock()] * (count - self._count))
        self._count = count

    def explain_death(self) -> bool | None:
        """Return whether a child that SIGKILL has ended was probably killed since memory ran out; None if unknown."""
        self.look()
        while self._unexplained and self._clock() - self._unexplained[0] > ENDING_S:
            self._unexplained.popleft()
        if self._count is None:
            return None
        if not self._unexplained:
            return False
        self._unexplained.popleft()
        return True

    def _read(self) -> int | None:
        return None if self._counter is None else _count_in(self._counter)


def counter_of(process: Path = OWN) -> Path | None:
    """Return the file in which the system counts kills of a process's control group; None if there is none."""
    try:
        groups = [line.split(":", 2) for line in (process / "cgroup").read_text("utf-8").splitlines()]
        mounts = [line.split() for line in (process / "mountinfo").read_text("utf-8").splitlines()]
    except OSError:
        return None
    paths = {
        "cgroup" if "memory" in names.split(",") else "cgroup2" if not names else "": path for _, names, path in groups
    }
    for kind, name in COUNTERS.items():
        for mount in mounts if kind in paths else ():
            after = mount.index("-")
            if mount[after + 1] != kind or (kind == "cgroup" and "memory" not in mount[after + 3].split(",")):
                continue
            root, folder = mount[3], Path(mount[4])
            if Path(paths[kind]).is_relative_to(root):
                own = folder / Path(paths[kind]).relative_to(root)
                # A group without the controller of memory belongs to the nearest above it that has one.
                above = (each / name for each in (own, *own.parents) if each.is_relative_to(folder))
                if found := next((file for file in above if _count_in(file) is not None), None):
                    return found
    return None


def _count_in(file: Path) -> int | None:
    try:
        lines = file.read_text("utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.split()[:1] == [FIELD])
    except (OSError, StopIteration):
        return None
