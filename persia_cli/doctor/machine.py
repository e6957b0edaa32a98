"""Processors, memory and limits of this machine, as its system and a container's limits leave them, and speeds.

The speeds of memory and of the disk are measured for about a second.
"""

import logging
import os
import resource
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.machine import available_bytes, this_machine
from persia_cli.cgroups import memory_bytes, processor_limit, processors
from persia_cli.config.replicas import GPU
from persia_cli.doctor.finding import Finding, gib
from persia_cli.engines.affinity import SYSTEM, processors_here
from persia_cli.errors import PersiaError
from persia_cli.kernels.toolchain.memory import HUGE_PAGE
from persia_cli.store.memory_file import MemoryFile, new_file

SUFFIX = {"Data": "d", "Instruction": "i", "Unified": ""}
MIN_MEMORY, MIN_SHARED, MIN_FILES = 2 * 2**30, 2**30, 4096
MAX_THREADS, COPIES = 8, 16
PART, FILE = 32 * 2**20, 64 * 2**20
"""Bytes that a thread copies at a time, more than caches hold; bytes of the file that is written."""
SLOW_DISK, LITTLE_DISK = 1e8, 2 * 2**30


def cores() -> Finding:
    """Return the processors, and those whose time a container may use."""
    machine, limit = this_machine(), processor_limit()
    values = {"cores": machine.cores, "machine": os.cpu_count(), "limit": limit, "features": list(machine.features)}
    advice = f"a container's limit is the time of {limit} processors: give it whole ones, docker run --cpuset-cpus"
    text = f"{machine.processor}; the machine has {os.cpu_count()}"
    return Finding(text, values, advice if limit is not None and limit < machine.cores else "")


def caches() -> Finding:
    """Return the caches of the first processor."""
    found = {}
    for folder in sorted((SYSTEM / "cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        found[f"L{level}{SUFFIX[kind]}"] = size
    return Finding(", ".join(f"{name} {size}" for name, size in found.items()) or "not known here", found)


def numa() -> Finding:
    """Return the NUMA nodes with their processors."""
    nodes = {f"node:{number}": processors for number, processors in processors_here().nodes.items()}
    advice = f"keep each embedding server to one: cluster.pin={{embedding_server: [{', '.join(nodes)}]}}"
    text = ", ".join(f"{node} has {processors}" for node, processors in nodes.items()) or "not known here"
    return Finding(text, {"nodes": nodes}, advice if len(nodes) > 1 else "")


def memory() -> Finding:
    """Return the memory that processes may use, and what is free of the machine's."""
    allowed, free, machine = memory_bytes(), available_bytes(), this_machine().memory
    is_little = min(allowed, free) < MIN_MEMORY
    advice = "free some, or give rows less: embedding.memory=256MiB" if is_little else ""
    text = f"{gib(allowed)}; the machine has {gib(machine)}, {gib(free)} free"
    return Finding(text, {"allowed": allowed, "free": free, "machine": machine}, advice)


def huge_pages() -> Finding:
    """Return whether rows can be in huge pages; tries it in a file in memory, without which nothing can be trained."""
    logging.getLogger(MemoryFile.__module__).addHandler(logging.NullHandler())  # its warning is the advice here
    setting = this_machine().huge_pages
    try:
        descriptor = new_file("doctor")
        file = MemoryFile(descriptor, "doctor", 4 * HUGE_PAGE, keep=False)
    except PersiaError as error:
        return Finding(f"{setting}; no files in memory", {}, str(error), prevents=True)
    file.back(file.array(2 * HUGE_PAGE, "uint8"), 0, 2 * HUGE_PAGE)
    file.close()
    os.close(descriptor)
    advice = "" if file.can_back else "rows are in small pages, which is slower: use Linux 6.1 or later"
    advice = advice if setting != "never" else "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    text = f"{setting}; files in memory {'have' if file.can_back else 'cannot have'} them"
    return Finding(text, {"setting": setting, "memory_files": file.can_back}, advice)


def shared_memory() -> Finding:
    """Return the size of /dev/shm, which only NCCL uses."""
    space = os.statvfs("/dev/shm")
    size, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    advice = "several GPUs need 1 GiB here: docker run --shm-size=1g" if free < MIN_SHARED and GPU.exists() else ""
    return Finding(f"{gib(size)} in /dev/shm, {gib(free)} free", {"size": size, "free": free}, advice)


def files() -> Finding:
    """Return the number of files that a process may open; roles raise the soft limit to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = 2**63 if hard == resource.RLIM_INFINITY else hard
    advice = "raise it: ulimit -Hn 65536, or docker run --ulimit nofile=65536" if most < MIN_FILES else ""
    return Finding(f"a process may open {most:,}", {"limit": most}, advice)


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
