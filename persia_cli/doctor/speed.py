"""The speeds of memory and of the disk, measured for about a second."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from persia_cli.cgroups import processors
from persia_cli.doctor.finding import Finding, gib

MAX_THREADS, COPIES = 8, 16
PART, FILE = 32 * 2**20, 64 * 2**20
"""Bytes that a thread copies at a time, more than caches hold; bytes of the file that is written."""
SLOW_DISK, LITTLE_DISK = 1e8, 2 * 2**30


def bandwidth() -> Finding:
    """Measure the bytes per second that one thread, and one on each processor, read and write when they copy."""
    threads = min(MAX_THREADS, processors())
    one, together = _copied(1), _copied(threads)
    text = f"{one / 1e9:.1f} GB/s by one thread, {together / 1e9:.1f} by {threads}"
    return Finding(text, {"one_thread": one, "threads": threads, "together": together})


def _copied(threads: int) -> float:
    pairs = [np.ones((2, PART), np.uint8) for _ in range(threads)]

    def copy(pair: NDArray[np.uint8]) -> None:
        for _ in range(COPIES):
            np.copyto(pair[0], pair[1])

    begin = perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(copy, pairs))
    return 2 * PART * COPIES * threads / (perf_counter() - begin)


def disk(folder: Path) -> Finding:
    """Measure how fast a file in the folder of runs is written until it is on the disk, and read from there."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())
    space = os.statvfs(there)
    free, data = space.f_bavail * space.f_frsize, os.urandom(FILE)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            begin = perf_counter()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            written = FILE / (perf_counter() - begin)
            os.posix_fadvise(file.fileno(), 0, FILE, os.POSIX_FADV_DONTNEED)  # so that it is read from the disk
            file.seek(0)
            begin = perf_counter()
            file.read()
            read = FILE / (perf_counter() - begin)
    except OSError as error:
        advice = f"{there} cannot be written ({error.strerror}): give another folder, --run-dir DIR"
        return Finding(f"{there}, {gib(free)} free", {"free": free}, advice, prevents=True)
    advice = "" if written > SLOW_DISK else "checkpoints are slow here: checkpoint.path=DIR on another disk"
    advice = advice if free > LITTLE_DISK else "checkpoints need space: free some, or give checkpoint.path=DIR"
    text = f"{there}: {written / 1e6:,.0f} MB/s written, {read / 1e6:,.0f} read, {gib(free)} free"
    return Finding(text, {"folder": str(there), "write": written, "read": read, "free": free}, advice)
