"""The place of a process: who has the same can share memory with it."""

import hashlib
import os
import secrets
from functools import cache
from pathlib import Path

from persia_cli.wire.message import ProcessId

BOOT, PROCESSES = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
MARK = "#"
"""Between an address of TCP that other machines can reach, and the place of the process that listens there."""


@cache
def own_place() -> str:
    """Return the place of this process: the same in all processes of a user that see each other in /proc.

    Processes of several containers on one machine are at several places.
    """
    return _known_place() or secrets.token_hex(8)


@cache
def _known_place() -> str:
    """Return what processes at this place find alike; empty if the system does not say it."""
    try:
        # Shared memory is opened through /proc/PID/fd, by the same user only.
        identity = f"{BOOT.read_text()} {PROCESSES.readlink()} {os.geteuid()}"
    except OSError:
        return ""
    return hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()


def process_id(pid: int) -> ProcessId:
    """Return what tells this process, or a child that has not been waited for, from all others."""
    return ProcessId(pid, _began(pid), _known_place())


def own_process() -> ProcessId:
    """Return what tells this process from all others; the same as its parent finds by `process_id`."""
    return process_id(os.getpid())


def _began(pid: int) -> int:
    """Return when a process began, in ticks since its machine did; 0 if the system does not say it (Linux, proc(5))."""
    try:
        # The name before may have spaces.
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except OSError:
        return 0


def split_place(address: str) -> tuple[str, str]:
    """Return an address and the place that comes with it, if any."""
    if not address.startswith("tcp://"):
        return address, ""
    plain, _, place = address.partition(MARK)
    return plain, place
