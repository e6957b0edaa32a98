"""The machine that jobs are launched on."""

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def memory_bytes() -> int:
    """Return the memory in bytes that processes may use: that of the machine, or less in a container."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *cgroup_limits(OWN_CGROUPS, CGROUPS)])


def cgroup_limits(own: Path, root: Path) -> list[int]:
    """Return the memory limits, in bytes, of this process's control group and of all groups above it.

    cgroups(7): a line of `own` is `number:controllers:path`. Version 2 has no controllers and the limit is in
    `memory.max`; version 1 has `memory` and `memory.limit_in_bytes`. In a container the path may be the host's, so the
    top group is read too.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder == top or top in folder.parents:
                limits += _limit(folder / name)
    return limits


def _limit(file: Path) -> list[int]:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return []
    return [int(text)] if text.isdecimal() else []
