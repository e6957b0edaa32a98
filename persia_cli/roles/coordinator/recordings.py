"""Traces: the portions that replicas send are written to files of the run directory."""

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from persia_cli.control.membership import Member
from persia_cli.errors import WireError
from persia_cli.observe.recordings import PORTIONS, TracePortion, recording_of, remove_recordings
from persia_cli.observe.trace import SPANS_LIMIT, own_clock
from persia_cli.roles.coordinator.context import JobContext
from persia_cli.wire.job_messages import Recorded
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer

log = logging.getLogger(__name__)


class Recordings:
    """The trace files of a run, and the replicas whose trace is complete."""

    def __init__(self, context: JobContext) -> None:
        """Retain the files of an earlier start of the training, unless this one begins with its first step."""
        self._context, job = context, context.job
        self._run_dir, self._is_wanted = Path(job.run_dir), job.trace_first < job.trace_last
        self._behind_ns = time.time_ns() - time.monotonic_ns()
        self._whole: dict[str, int] = {}
        self._spans: dict[str, int] = {}
        if job.load is None:
            remove_recordings(self._run_dir)

    def unfinished(self, members: Sequence[Member]) -> set[str]:
        """Return the names of those of these replicas that still have a portion to send."""
        unfinished = [each for each in members if self._whole.get(each.name) != each.incarnation]
        return {member.name for member in unfinished} if self._is_wanted else set()

    def on_recorded(self, peer: Peer, message: Recorded) -> None:
        """Write a portion; count those that the disk refuses. Raise WireError for an invalid one."""
        member = self._context.find(message.sender)
        try:
            portion = PORTIONS.decode(message.portion)
        except msgspec.DecodeError as error:
            raise WireError(f"{member.name} has sent an invalid portion of a trace: {error}") from error
        spans = self._spans.get(portion.process, 0) + len(portion.spans)
        if portion.replica != member.name or not self._is_wanted or spans > 2 * SPANS_LIMIT:
            raise WireError(f"{member.name} has sent a portion of a trace that was not requested")
        self._spans[portion.process] = spans

        def written(failure: OSError | None) -> None:
            if failure is not None:
                log.warning("a portion of the trace of %s is lost: %s", member.name, failure)
                why = failure.strerror or str(failure)
                self._context.record.note_unwritten(member.name, len(portion.spans), why)
            if portion.is_last:
                self._whole[member.name] = member.incarnation
            self._context.reply(peer, Ack())

        self._context.disk.run("writing the trace", lambda: self._write(portion), written)

    def _write(self, portion: TracePortion) -> OSError | None:
        """Append a portion to the file of its replica; return the error of the disk, or None."""
        try:
            self._append(portion)
        except OSError as error:
            return error
        return None

    def _append(self, portion: TracePortion) -> None:
        clock = own_clock()
        if portion.clock == clock:
            portion = msgspec.structs.replace(portion, ahead_ns=0, within_ns=0)
        portion = msgspec.structs.replace(portion, clock=clock, behind_ns=self._behind_ns)
        path = recording_of(self._run_dir, portion.replica)
        path.parent.mkdir(exist_ok=True)
        rest = memoryview(msgspec.json.encode(portion) + b"\n")
        with path.open("ab", buffering=0) as file:
            whole = os.fstat(file.fileno()).st_size
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(whole)  # a partial line would damage the next one
                raise
