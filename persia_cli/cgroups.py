"""The limits of this process's control groups, which are those of a container: memory and processor time."""

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def memory_bytes(own: Path = OWN_CGROUPS, root: Path = CGROUPS) -> int:
    """Return the memory in bytes that processes may use: that of the machine, or less in a container."""
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    limits = [_text(group / names[version]) for group, version in _groups("memory", own, root)]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(int(limit) for limit in limits if limit.isdecimal() and int(limit))])


def processor_limit(own: Path = OWN_CGROUPS, root: Path = CGROUPS) -> float | None:
    """Return the number of processors whose time this process and others of its groups may use; None if unlimited."""
    limits = []
    for group, version in _groups("cpu", own, root):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        time, period, *_ = [*" ".join(_text(group / name) for name in names).split(), "", ""]
        if time.isdecimal() and period.isdecimal():
            limits.append(int(time) / int(period))
    return min(limits, default=None)


def processors() -> int:
    """Return the number of processors whose time this process may use; a container may see more."""
    seen = len(os.sched_getaffinity(0))
    return max(1, min(seen, int(processor_limit() or seen)))


def _groups(controller: str, own: Path, root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folder and version of this process's control group and of all groups above it.

    cgroups(7): a line of `own` is `number:controllers:path`, without controllers in version 2. In a container the path
    may be the host's, so the top group is yielded too.
    """
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controller if controllers else root
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder == top or top in folder.parents:
                yield folder, 1 if controllers else 2


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
