"""The cache of compiled kernels on disk: one folder for each combination of sources, versions and processor.

This module does not import numba, so that a driver can check the cache quickly. A kernel is three files: the index
and the machine code, as numba writes them, and then the SHA-256 of both. A kernel whose files do not match is compiled
again.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from persia_cli.disk import write_whole

MAX_FOLDERS = 8
"""Maximum number of cache folders; the most recently used ones are retained."""
CPU_FACTS = {
    *("vendor_id", "cpu family", "model", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
}
"""Lines of /proc/cpuinfo that describe the instruction set: on x86-64 and on ARM."""


@cache
def cache_folder() -> Path:
    """Return the cache folder for the present sources, versions of numba and Python, and processor."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    facts = [version("numba"), version("llvmlite"), sys.implementation.cache_tag, platform.machine(), *_processor()]
    # NUMBA_CPU_NAME, NUMBA_OPT and others determine the generated code.
    facts += sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("NUMBA_") and k != "NUMBA_CACHE_DIR")
    digest.update("\n".join(map(str, facts)).encode())
    return _base() / f"kernels-{digest.hexdigest()[:16]}"


def _base() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("NUMBA_CACHE_DIR") or Path(home) / "persia").expanduser()


def _processor() -> list[str]:
    """Return the `CPU_FACTS` lines of the first processor in /proc/cpuinfo; none if there is no such file."""
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        lines = [line.strip() for line in iter(file.readline, "\n") if line]
        return [line for line in lines if line.partition("\t")[0].strip() in CPU_FACTS]
    return []


def kernel_files(name: str) -> tuple[Path, Path]:
    """Return the files that numba writes for the kernel of this name."""
    return cache_folder() / f"{name}.nbi", cache_folder() / f"{name}.1.nbc"


def is_cached(name: str) -> bool:
    """Return True if there is a compiled kernel to load."""
    return _seal(name).exists()


def is_whole(name: str) -> bool:
    """Return True if there is a compiled kernel with the right checksum."""
    try:
        return _seal(name).read_text(encoding="ascii") == _digest(name)
    except OSError:
        return False


def seal(name: str) -> None:
    """Write the checksum of a kernel, which publishes it to other processes; raise OSError or DiskError."""
    write_whole(_seal(name), _digest(name))
    _remove_old_folders(cache_folder())


def discard(name: str) -> None:
    """Remove all files of a kernel."""
    with suppress(OSError):
        for path in (_seal(name), *kernel_files(name)):
            path.unlink(missing_ok=True)


def _seal(name: str) -> Path:
    return cache_folder() / f"{name}.sha256"


def _digest(name: str) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in kernel_files(name))).hexdigest()


def mark_ready(need: str) -> None:
    """Record that all kernels of a need are in the cache; do nothing if the cache cannot be written."""
    with suppress(OSError):
        _ready(need).touch()


def is_ready(need: str) -> bool:
    """Return True if all kernels of a need were in the cache once."""
    return _ready(need).exists()


def _ready(need: str) -> Path:
    return cache_folder() / f"{need}.ready"


def can_cache() -> bool:
    """Return True if the cache folder can be written."""
    folder = next(path for path in (cache_folder(), *cache_folder().parents) if path.exists())
    return os.access(folder, os.W_OK | os.X_OK)


def _remove_old_folders(present: Path) -> None:
    """Remove all but the most recently written cache folders; a process that still needs one compiles again."""
    folders = sorted(present.parent.glob("kernels-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for folder in folders[MAX_FOLDERS:]:
        if folder != present:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def turn(name: str, wait: bool) -> Iterator[bool]:
    """Lock a kernel while it is compiled; yield True if the lock is held.

    Without `wait`, yield False while another process holds it. The system releases the lock when its process ends. If
    the file system cannot lock, yield True: several processes may then compile the same kernel.
    """
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        file = (cache_folder() / f"{name}.lock").open("ab")
    except OSError:
        yield True
        return
    with file:
        is_locked = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            is_locked = False
        except OSError:
            pass  # a file system without locks
        yield is_locked
