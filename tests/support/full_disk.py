"""A small file system that tests can fill."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(nbytes: int) -> Iterator[Path]:
    """Yield a folder in which `nbytes` fit; skips the test if this user cannot mount one."""
    with tempfile.TemporaryDirectory(prefix="persia-disk-") as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", folder], capture_output=True, text=True
        )
        if mounted.returncode:
            pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def leave_free(folder: Path, nbytes: int) -> Path:
    """Fill the file system of a folder until so much is left; return the file that takes the space."""
    path = folder / "filler"
    state = os.statvfs(folder)
    rest = max(0, state.f_bavail * state.f_frsize - nbytes)
    with path.open("wb", buffering=0) as file, suppress(OSError):  # others may take space meanwhile
        while rest:
            rest -= file.write(bytes(min(rest, 2**20)))
    return path
