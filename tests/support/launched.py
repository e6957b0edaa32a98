"""`persia train` in its own process, whose replicas a test can find, stop and kill."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from persia_cli.control.restarts import killed_by
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from tests.conftest import poll_for
from tests.support.small import WORDS

LIMIT_S = 90.0
ENDLESS = [*WORDS, "cluster=local", "dataset.generator.train_rows=1_000_000_000", "train.log_every_steps=5"]
"""The small job in processes, with more steps than any test waits for."""
KILLED = killed_by(signal.SIGKILL)
"""The message about a process that a test has killed."""


class Launched:
    """The driver and its processes; a context manager that leaves no process behind, and no file elsewhere.

    `temporary` is its folder for temporary files.
    """

    def __init__(self, words: list[str], run_dir: Path, environment: dict[str, str] | None = None) -> None:
        self.run_dir = run_dir
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        # Not below the test's folder, whose path may be too long for Unix sockets.
        self._temporary = tempfile.TemporaryDirectory(prefix="persia-test-", ignore_cleanup_errors=True)
        self.temporary = Path(self._temporary.name)
        self._output = run_dir.parent / f"{run_dir.name}.out"
        command = [sys.executable, "-m", "persia_cli", "train", *words, "--run-dir", str(run_dir)]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=run_dir.parent,
                env=os.environ | {"TMPDIR": self._temporary.name} | (environment or {}),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.pids().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._temporary.cleanup()

    @property
    def output(self) -> str:
        """The output of the driver."""
        return self._output.read_text(encoding="utf-8")

    def pids(self) -> dict[str, int]:
        """Return the process of each replica by name, once all of them are ready."""
        ready = [event for event in read_journal(self.run_dir / EVENTS) if event["event"] == "ready"]
        return {replica["name"]: replica["pid"] for event in ready for replica in event["replicas"]}

    def wait_for_training(self) -> dict[str, int]:
        """Wait until steps are trained; return the process of each replica by name."""
        poll_for(
            lambda: read_journal(self.run_dir / METRICS) or self.process.poll() is not None, LIMIT_S, "steps trained"
        )
        assert self.process.poll() is None, self.output
        return self.pids()

    def end(self, within_s: float) -> tuple[int, float]:
        """Wait for the driver's end; return its exit code and the time that it took, in seconds."""
        begin = time.monotonic()
        poll_for(lambda: self.process.poll() is not None, within_s, "the end of the driver")
        code: int = self.process.returncode
        return code, time.monotonic() - begin


def pids_of(run_dir: Path) -> dict[str, int]:
    """Return the current process of each replica, also after deaths."""
    found: dict[str, int] = {}
    for event in read_journal(run_dir / EVENTS):
        if event["event"] == "ready":
            found |= {replica["name"]: replica["pid"] for replica in event["replicas"]}
        elif event["event"] == "recovered":
            found[event["replica"]] = event["pid"]
    return found


def running(pids: dict[str, int]) -> list[str]:
    """Return the replicas whose process is still running."""
    return [name for name, pid in pids.items() if is_running(pid)]


def is_running(pid: int) -> bool:
    """Return False for a process that has ended, also if its parent has not noticed."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
