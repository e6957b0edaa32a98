"""The end of a connection that is on the machine: it reports how replicas do, and passes signals on to them.

ssh starts it, and it ends with its input; replicas do not depend on it. It writes one JSON object per line.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from persia_cli import __version__
from persia_cli.disk import write_whole
from persia_cli.engines.affinity import processors_here
from persia_cli.engines.background import (
    LOG,
    alone_in,
    cancel,
    cancelled_in,
    exit_code,
    is_running,
    replicas_in,
    send_signal,
)
from persia_cli.engines.hosts.start import RUN
from persia_cli.engines.job import COORDINATOR_ADDRESS, JOB, LISTENING, ROLES
from persia_cli.engines.readiness import memory_bytes
from persia_cli.errors import DiskError
from persia_cli.observe.history import CONFIG
from persia_cli.observe.journal import EVENTS, METRICS
from persia_cli.observe.recordings import RECORDINGS, SUFFIX
from persia_cli.plan.job import COORDINATOR
from persia_cli.plan.pinning import MachineProcessors

POLL_S = 0.2
PORTION = 2**20
"""Bytes of a file that one line carries at most."""
SILENT_S = 60.0
"""Seconds without a line from the other end, which sends them all the time, after which it is gone."""
ENDING = (signal.SIGINT, signal.SIGKILL)
"""Signals after which a replica that has not been started is not started any more."""
OBEYED = "obeyed.json"
"""Which orders the sessions of a start have obeyed."""
RECORD = (CONFIG, JOB, COORDINATOR_ADDRESS, EVENTS, METRICS)
"""Files of the run directory that are followed, the address before events that tell of the job."""
OF_A_START = (COORDINATOR_ADDRESS, EVENTS)
"""Those in which an earlier start would be taken for this one: where it listened, and how it failed."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a machine says about itself."""

    version: str
    """Of Persia."""
    host: str
    address: str
    """At which ssh reached it; empty if it does not say."""
    memory: int
    """Bytes that processes may use."""
    processors: MachineProcessors


def facts_of_host() -> HostFacts:
    """Return the facts of this machine."""
    connection = os.environ.get("SSH_CONNECTION", "").split()  # the client's address and port, and the own ones
    address = connection[2] if len(connection) == 4 else ""
    return HostFacts(__version__, socket.gethostname(), address, memory_bytes(), processors_here())


class FollowedFile:
    """A file that grows, or is replaced."""

    def __init__(self, path: Path, name: str, inode: int = 0, size: int = 0) -> None:
        """`name` is what the other end calls it, which has `size` bytes of the file `inode`."""
        self._path, self._name = path, name
        self._inode, self._size = inode, size

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield what is new in the file, in portions."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._size:
                    self._inode, self._size = found.st_ino, 0
                    yield self._portion(b"")
                file.seek(self._size)
                while data := file.read(PORTION):
                    yield self._portion(data)
                    self._size += len(data)
        except FileNotFoundError:
            return

    def _portion(self, data: bytes) -> dict[str, Any]:
        # Each byte as one character, so that a portion may end within a letter.
        return {"file": self._name, "inode": self._inode, "at": self._size, "data": data.decode("latin-1")}


class HostSession:
    """The replicas of one job on this machine, as the other end is to know them."""

    def __init__(self, start: Path, replicas: Collection[str], known: Mapping[str, tuple[int, int]]) -> None:
        """`start` is the folder of a start of the job, and `replicas` are those that are placed on this machine.

        Where machines share a disk, the folder has others too, whose processes are not to be found here.
        `known` has inode and size of each file at the other end.
        """
        self._start, self._replicas, self._known = start, replicas, known
        self._files: dict[str, FollowedFile] = {}
        self._seen: set[str] = set()
        self._ended: set[str] = set()
        self._cancelled: set[str] = set()
        self._obeyed: dict[str, int] = {}
        self._listened = False

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield what has come since the last call; that a replica has ended comes after all that it has said."""
        names = [name for name in replicas_in(self._start) if name in self._replicas]
        for name in names:
            if name not in self._seen:
                self._seen.add(name)
                yield {"replica": name}
        over = [name for name in names if name not in self._ended and not is_running(self._start, name)]
        logs = {f"{ROLES}/{name}{LOG}": self._start / f"{name}{LOG}" for name in names}
        for path, place in (logs | self._record()).items():
            if path not in self._files:
                self._files[path] = FollowedFile(place, path, *self._known.get(path, (0, 0)))
            yield from self._files[path].news()
        for name in over:
            self._ended.add(name)
            yield {"ended": name, "code": exit_code(self._start, name)}
        for name in sorted({*cancelled_in(self._start)} & {*self._replicas} - self._cancelled):
            self._cancelled.add(name)
            yield {"cancelled": name}

    def _record(self) -> dict[str, Path]:
        """Return the files of the run directory, which the coordinator's machine has."""
        if not any(name.startswith(f"{COORDINATOR}-") for name in self._replicas):
            return {}
        run_dir = self._start.parent / RUN
        recordings = [f"{RECORDINGS}/{path.name}" for path in sorted((run_dir / RECORDINGS).glob(f"*{SUFFIX}"))]
        names = [name for name in RECORD if name not in OF_A_START or self._has_listened()]
        return {name: run_dir / name for name in [*names, *recordings]}

    def _has_listened(self) -> bool:
        """Return whether the coordinator of this start has; until then the folder may be as the last start left it."""
        if not self._listened:
            log = self._start / f"{COORDINATOR}-0{LOG}"
            self._listened = log.exists() and LISTENING.encode() in log.read_bytes()
        return self._listened

    def obey(self, order: dict[str, Any]) -> dict[str, Any] | None:
        """Pass a signal on, unless a session before has; return the line that says so.

        It is repeated where its connection was cut off, perhaps after it had come, and a second SIGTERM would be
        another order. One without a signal says only that the other end is there.
        """
        if "signal" not in order:
            return None
        other, number, noted = order["from"], order["number"], self._start / OBEYED
        with alone_in(self._start):  # an order may come again while its first session still obeys it
            last = _noted(noted)
            if number > max(last.get(other, 0), self._obeyed.get(other, 0)):
                for name in order["to"]:
                    self._pass_on(name, signal.Signals[order["signal"]])
                self._obeyed[other] = number
                # Where the disk has no room, an order that comes again through another session is obeyed again.
                with suppress(DiskError):
                    write_whole(noted, json.dumps(last | {other: number}))
        return {"obeyed": order["number"]}

    def _pass_on(self, name: str, number: signal.Signals) -> None:
        if not send_signal(self._start, name, number) and number in ENDING:
            with suppress(DiskError):  # it is then not said to be cancelled, and may run
                cancel(self._start, name)


def _noted(path: Path) -> dict[str, int]:
    """Return which order of each other end was the last to be obeyed here."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def run_session(start: Path | None, source: BinaryIO | None = None) -> None:
    """Say what this machine is; with the folder of a start of a job, report its replicas until the input ends.

    The first line of the input says which replicas these are and which files the other end has, each later one is an
    order.
    """
    _say({"facts": asdict(facts_of_host())})
    if start is None:
        return
    orders = _Orders((source or sys.stdin.buffer).fileno())
    first = orders.first()
    if first is None:
        return
    session = HostSession(start, first["replicas"], first["known"])
    caught_up: list[dict[str, Any]] = [{"caught_up": True}]
    while True:
        for news in chain(session.news(), caught_up):
            _say(news)
        caught_up = []
        for order in orders.within(POLL_S):
            if (done := session.obey(order)) is not None:
                _say(done)
        if orders.ended:
            return


class _Orders:
    """The lines of an input, each a JSON object."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._rest = b""
        self._came: list[dict[str, Any]] = []
        self._heard_s = time.monotonic()
        self._closed = False

    @property
    def ended(self) -> bool:
        """True if the other end has closed the input, or has been silent for too long to be there."""
        return self._closed or time.monotonic() - self._heard_s > SILENT_S

    def within(self, seconds: float) -> list[dict[str, Any]]:
        """Return the lines that have come, or those that come first within so many seconds."""
        ready, _, _ = select.select([self._file], [], [], 0 if self._came else seconds)
        if ready:
            data = os.read(self._file, PORTION)
            self._closed, self._heard_s = not data, time.monotonic()
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._came += [json.loads(line) for line in lines]
        came, self._came = self._came, []
        return came

    def first(self) -> dict[str, Any] | None:
        """Wait for a line; None if there is none."""
        while not self.ended:
            if lines := self.within(POLL_S):
                self._came = lines[1:]
                return lines[0]
        return None


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
