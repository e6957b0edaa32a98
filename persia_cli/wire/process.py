"""The identity of a process, and its memory domain: processes of one domain can share memory."""

import hashlib
import os
import secrets
import signal
from functools import cache
from pathlib import Path

from persia_cli.wire.message import ProcessId

BOOT, PROCESSES = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
MARK = "#"
"""Separator between an address of TCP that other machines can reach, and the memory domain of the process at it."""


@cache
def memory_domain() -> str:
    """Return the memory domain of this process: the same in all processes of a user that see each other in /proc.

    Processes of several containers on one machine have several domains.
    """
    return _known_domain() or secrets.token_hex(8)


@cache
def _known_domain() -> str:
    """Return a text that only processes of this domain compute; empty if the system does not provide it."""
    try:
        # Shared memory is opened through /proc/PID/fd, by the same user only.
        identity = f"{BOOT.read_text()} {PROCESSES.readlink()} {os.geteuid()}"
    except OSError:
        return ""
    return hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()


def process_id(pid: int) -> ProcessId:
    """Return the identity of this process, or of a child that has not been waited for."""
    return ProcessId(pid, _began(pid), _known_domain())


def this_process() -> ProcessId:
    """Return the identity of this process; the same as its parent gets from `process_id`."""
    return process_id(os.getpid())


def kill(process: ProcessId) -> bool:
    """Kill another process of this memory domain; return False for one of another domain or user."""
    if process.pid == os.getpid() or not process.domain or process_id(process.pid) != process:
        return False
    try:
        os.kill(process.pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def _began(pid: int) -> int:
    """Return the start time of a process, in ticks since its machine started; 0 if unknown (Linux, proc(5))."""
    try:
        # The name, the field before, may contain spaces.
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except OSError:
        return 0


def split_domain(address: str) -> tuple[str, str]:
    """Return an address without its memory domain, and the domain, if any."""
    if not address.startswith("tcp://"):
        return address, ""
    plain, _, domain = address.partition(MARK)
    return plain, domain
