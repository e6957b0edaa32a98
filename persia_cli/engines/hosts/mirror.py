"""The copy of a job's record and logs in the run directory of the machine that follows it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from persia_cli.disk import writing
from persia_cli.engines.background import LOG
from persia_cli.engines.hosts.session import RECORD
from persia_cli.engines.job import COORDINATOR_ADDRESS, ROLES
from persia_cli.observe.recordings import recording_of
from persia_cli.plan.job import COORDINATOR


class Mirror:
    """Files of one machine, as they come in portions."""

    def __init__(
        self, run_dir: Path, replicas: Sequence[str], recorded: Sequence[str] = (), writes: bool = True
    ) -> None:
        """`replicas` are those of the machine, and `recorded` those of the job; other files are not heeded.

        Without `writes`, another process writes them.
        """
        self.replicas = list(replicas)
        self._writes = writes
        self._run_dir = run_dir
        self._places = {f"{ROLES}/{name}{LOG}": run_dir / ROLES / f"{name}{LOG}" for name in replicas}
        if any(name.startswith(f"{COORDINATOR}-") for name in replicas):
            recordings = [str(recording_of(Path(), name)) for name in recorded]
            self._places |= {name: run_dir / name for name in [*RECORD, *recordings]}
        self.known: dict[str, tuple[int, int]] = {}
        """Inode, on the machine, and size of each file that is here."""
        self.address = ""
        """Address of the job's coordinator, if it is on this machine."""

    def take(self, portion: dict[str, Any]) -> None:
        """Write a portion of a file; one without data begins it anew. Raises DiskError."""
        name, at, data = portion["file"], portion["at"], portion["data"].encode("latin-1")
        if name == COORDINATOR_ADDRESS:
            self.address = data.decode().strip()  # here, nothing listens at it
            return
        place = self._places.get(name)
        if place is None or not self._writes:
            return
        with writing(place):
            place.parent.mkdir(exist_ok=True)
            file = os.open(place, os.O_WRONLY | os.O_CREAT | (0 if at or data else os.O_TRUNC), 0o644)
            try:
                os.pwrite(file, data, at)
            finally:
                os.close(file)
        self.known[name] = portion["inode"], at + len(data)

    def log_of(self, name: str) -> str:
        """Return the log of a replica."""
        try:
            return (self._run_dir / ROLES / f"{name}{LOG}").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
