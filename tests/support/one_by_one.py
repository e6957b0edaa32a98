"""Roles of a job that are started one by one, as a person or a cluster's engine does."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from persia_cli.engines.job import prepare_run_dir
from tests.conftest import poll_for
from tests.support.jobs import plan
from tests.support.threads import free_address

END_S = 60.0
"""Far less than the silence timeout; processes of a busy machine take many seconds to end."""

Started = dict[str, subprocess.Popen[bytes]]


@contextmanager
def by_hand(words: list[str], run_dir: Path, without: str = "", supervise: bool = False) -> Iterator[Started]:
    """Start every replica of a job, but for one, over TCP, by its printed command; kill the remaining ones at the end.

    With `supervise` the started processes are the supervisors, each the parent of its replica's process.
    """
    job = plan([*words, "cluster.transport=tcp"], run_dir)
    prepare_run_dir(job)
    started: Started = {}
    try:
        for replica, line in zip(job.replicas, job.commands(free_address()), strict=True):
            if replica.name != without:
                command = [sys.executable, "-m", "persia_cli", *shlex.split(line)[1:]]
                command += ["--supervise"] if supervise else []
                started[replica.name] = _start(command, run_dir / "roles" / f"{replica.name}.log")
        yield started
    finally:
        below = [child for process in started.values() for child in children_of(process)]
        for process in started.values():
            process.kill()
            process.wait()
        psutil.wait_procs(below, timeout=END_S)


def start_again(started: Started, name: str, run_dir: Path) -> None:
    """Start a killed replica again by the same command, as an engine does in the same place."""
    started[name].wait()
    started[name] = _start([str(word) for word in started[name].args], run_dir / "roles" / f"{name}.log")


def _start(command: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def children_of(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """Return the processes below one; none if it has been waited for."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def end(started: Started, within_s: float = END_S) -> dict[str, int]:
    """Wait for the end of all processes; return their exit codes."""
    poll_for(lambda: all(process.poll() is not None for process in started.values()), within_s, "the end of all roles")
    return {name: process.returncode for name, process in started.items()}
