"""The place of a process: who has the same can share memory with it."""

import hashlib
import os
import secrets
from functools import cache
from pathlib import Path

BOOT, PROCESSES = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
MARK = "#"
"""Between an address of TCP that other machines can reach, and the place of the process that listens there."""


@cache
def own_place() -> str:
    """Return the place of this process: the same in all processes of a user that see each other in /proc.

    Processes of several containers on one machine are at several places.
    """
    try:
        # Shared memory is opened through /proc/PID/fd, by the same user only.
        identity = f"{BOOT.read_text()} {PROCESSES.readlink()} {os.geteuid()}"
    except OSError:
        identity = secrets.token_hex()
    return hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()


def split_place(address: str) -> tuple[str, str]:
    """Return an address and the place that comes with it, if any."""
    if not address.startswith("tcp://"):
        return address, ""
    plain, _, place = address.partition(MARK)
    return plain, place
