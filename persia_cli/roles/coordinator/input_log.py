"""The log of all that a coordinator was told, in order: from it the next one of the job comes to the same state.

A coordinator's state is a pure function of the requests, signals and moments that it has handled, and of what it found
on disk. Each of these is in the log before it has any effect, so whoever was answered is in it. What is not in it was
not answered and will be repeated. The file is a sequence of records, each with its size and two checksums.
"""

import os
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from persia_cli.control.awake import AwakeTime
from persia_cli.disk import replacing, sync, writing
from persia_cli.errors import TakeoverError, UserError
from persia_cli.observe.record_snapshot import RecordSnapshot
from persia_cli.wire.frames import decode, encode
from persia_cli.wire.job_messages import Report
from persia_cli.wire.message import Message
from persia_cli.wire.server import Peer

LOG = "coordinator.log"
"""Name of the file in the run directory; it is there as long as the job has not ended."""
HEAD = struct.Struct("<III")
"""Before each record: the size of its content in bytes, the CRC-32 of the content, and that of the two."""
SIZE = struct.Struct("<II")


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The first record: of which job the log is, and how large the file of metrics was when the job began."""

    job: bytes
    metrics_bytes: int


class Input(msgspec.Struct, frozen=True, tag="input"):
    """A request; `report` is its number among the reports of its rank, 0 of all other requests."""

    clock_s: float
    identity: bytes
    frames: list[bytes]
    report: int = 0


class SignalCame(msgspec.Struct, frozen=True, tag="signal"):
    """A signal to this process."""

    name: str
    clock_s: float = 0.0


class SaveIsDue(msgspec.Struct, frozen=True, tag="due"):
    """The time for the next checkpoint has come."""

    clock_s: float = 0.0


class GivenUp(msgspec.Struct, frozen=True, tag="failed"):
    """The job was given up."""

    text: str
    exit_code: int
    clock_s: float = 0.0


class Judged(msgspec.Struct, frozen=True, tag="judged"):
    """An evaluation is complete; this is its line of metrics."""

    line: dict[str, Any]


class Finding(msgspec.Struct, frozen=True, tag="found"):
    """What this process found or did on disk, encoded."""

    content: bytes


class Snapshot(msgspec.Struct, frozen=True, tag="record"):
    """The state of the run's record after all reports that are no longer in the log."""

    state: RecordSnapshot


Entry = Began | Input | SignalCame | SaveIsDue | GivenUp | Judged | Finding | Snapshot
Value = TypeVar("Value")

# Made at import, like all decoders, since threads must not be the first to use a type.
_DECODER = msgspec.msgpack.Decoder(Entry)
_ENCODER = msgspec.msgpack.Encoder()


class InputLog:
    """The log of one job; without a path nothing is kept, and nobody can take the job over.

    `again` is True of a process that takes a job over, and `replaying` while it is told what earlier ones were told.
    """

    def __init__(self, path: Path | None = None, job: bytes = b"", metrics_bytes: int = 0, again: bool = False) -> None:
        """Begin the log of a job, known by some bytes, or read it `again` where an earlier process has begun it.

        Raises TakeoverError if that cannot be read, or is of another job, DiskError.
        """
        self._path = path
        self.replaying, self.again = False, again
        self.snapshot: RecordSnapshot | None = None
        self.metrics_bytes = metrics_bytes
        self._compacted = 0
        """Bytes at the beginning of the file that no compaction has to look through: there are no reports in them."""
        self._entries: deque[Entry] = deque()
        self._awake, self._base_s = AwakeTime(time.monotonic()), 0.0
        if path is None:
            return
        with writing(path):
            if again:
                self._read(path, job)
            self.replaying = again
            self._file = path.open("ab" if again else "wb", buffering=0)
            if not again:
                self._append(Began(job, metrics_bytes), synced=True)
                sync(path.parent)

    def _read(self, path: Path, job: bytes) -> None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise TakeoverError(f"{path}, the log of the coordinator before, is missing") from None
        entries, whole = _entries_of(path, content)
        first = next(iter(entries), None)
        if not isinstance(first, Began):
            raise TakeoverError(f"{path}, the log of the coordinator before, is empty")
        if first.job != job:
            raise TakeoverError(f"{path} is the log of another job")
        if whole < len(content):
            os.truncate(path, whole)
        self.metrics_bytes = first.metrics_bytes
        for entry in entries[1:]:
            if isinstance(entry, Snapshot):
                self.snapshot, self.metrics_bytes = entry.state, entry.state.metrics_bytes
            else:
                self._entries.append(entry)

    def clock(self) -> float:
        """Return the seconds in which the coordinators of this job have run; in a replay, those of then."""
        ran_s = self._awake.at(time.monotonic())
        return self._base_s if self.replaying else self._base_s + ran_s

    def take(self, peer: Peer, message: Message, synced: bool) -> None:
        """Keep a request that is about to be handled; `synced` if its answer must not be lost with this machine."""
        if self._path is None or self.replaying:
            return
        frames = [bytes(frame) for frame in encode(peer.request, message)]
        report = message.number if isinstance(message, Report) else 0
        self._append(Input(self.clock(), peer.identity, frames, report), synced)

    def note(self, entry: SignalCame | SaveIsDue | GivenUp | Judged) -> None:
        """Keep what else has come, before it has any effect; in a replay it is there already, but for the very last."""
        if self._path is None or self._entries:
            return
        if not isinstance(entry, Judged):
            entry = msgspec.structs.replace(entry, clock_s=self.clock())
        self._append(entry, synced=True)

    def find(self, decoder: "msgspec.msgpack.Decoder[Value]", look: Callable[[], Value]) -> Value:
        """Return what `look` finds, or does, on disk; in a replay what it found then. Raises what it raises."""
        if self._entries:
            entry = self._entries[0]
            if isinstance(entry, GivenUp):
                raise UserError(entry.text)
            if not isinstance(entry, Finding):
                raise TakeoverError(f"{self._path} does not fit this job: it has {entry} where a finding belongs")
            self._entries.popleft()
            return decoder.decode(entry.content)
        found = look()
        if self._path is not None:
            self._append(Finding(_ENCODER.encode(found)), synced=True)
        return found

    def judged(self) -> bool:
        """Return whether the next record of a replay is that of an evaluation, and pass it over."""
        if self._entries and isinstance(self._entries[0], Judged):
            self._entries.popleft()
            return True
        return False

    def replay(self) -> Iterator[Input | SignalCame | SaveIsDue | GivenUp | Judged]:
        """Yield what the processes before were told; each must be handled before the next."""
        while self._entries:
            entry = self._entries.popleft()
            if isinstance(entry, (Began, Finding, Snapshot)):
                raise TakeoverError(f"{self._path} does not fit this job: {type(entry).__name__} comes too early")
            if not isinstance(entry, Judged):
                self._base_s = entry.clock_s
            yield entry
        self._awake, self.replaying = AwakeTime(time.monotonic()), False

    def compact(self, state: RecordSnapshot) -> None:
        """Replace all reports that are in the run's record by its state after them; keeps all that is not a report."""
        if self._path is None or self.replaying:
            return
        content = self._path.read_bytes()
        entries, _ = _entries_of(self._path, content, self._compacted)
        kept = [
            entry
            for entry in entries
            if not isinstance(entry, Snapshot)
            and not (isinstance(entry, Input) and 0 < entry.report < state.next_report)
        ]
        first_report = next((n for n, entry in enumerate(kept) if isinstance(entry, Input) and entry.report), len(kept))
        looked_through = content[: self._compacted] + b"".join(map(_framed, kept[:first_report]))
        with replacing(self._path) as part:
            part.write_bytes(looked_through + b"".join(map(_framed, [*kept[first_report:], Snapshot(state)])))
        with writing(self._path):
            self._file.close()
            self._file = self._path.open("ab", buffering=0)
        self._compacted = len(looked_through)

    def _append(self, entry: Entry, synced: bool) -> None:
        assert self._path is not None
        with writing(self._path):
            whole = os.fstat(self._file.fileno()).st_size
            rest = memoryview(_framed(entry))
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError:
                os.ftruncate(self._file.fileno(), whole)
                raise
            if synced:
                os.fdatasync(self._file.fileno())

    def close(self, ended: bool) -> None:
        """Close the file; remove it if the job has `ended`, for nobody can take it over then."""
        if self._path is not None:
            self._file.close()
            if ended:
                self._path.unlink(missing_ok=True)


def request_of(entry: Input) -> tuple[Peer, Message]:
    """Return a request as it came. Raises WireError if it cannot be read."""
    number, message = decode(entry.frames)
    return Peer(entry.identity, number), message


def _framed(entry: Entry) -> bytes:
    content = _ENCODER.encode(entry)
    sizes = SIZE.pack(len(content), zlib.crc32(content))
    return sizes + struct.pack("<I", zlib.crc32(sizes)) + content


def _entries_of(path: Path, content: bytes, at: int = 0) -> tuple[list[Entry], int]:
    """Return the records of a log from byte `at` on, and the size of what is whole; the last may be half written.

    Raises TakeoverError if another one is damaged.
    """
    entries: list[Entry] = []
    while at + HEAD.size <= len(content):
        size, checksum, of_sizes = HEAD.unpack_from(content, at)
        end = at + HEAD.size + size
        if zlib.crc32(content[at : at + SIZE.size]) != of_sizes:
            raise TakeoverError(f"{path}, the log of the coordinator before, is damaged at byte {at:,}")
        if end > len(content):
            break
        record = content[at + HEAD.size : end]
        if zlib.crc32(record) != checksum:
            if end == len(content):
                break
            raise TakeoverError(f"{path}, the log of the coordinator before, is damaged at byte {at:,}")
        try:
            entries.append(_DECODER.decode(record))
        except msgspec.MsgspecError as error:
            raise TakeoverError(f"{path}, the log of the coordinator before, cannot be read: {error}") from None
        at = end
    return entries, at
