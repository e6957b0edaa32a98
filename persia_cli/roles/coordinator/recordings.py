"""The coordinator's part in traces: what replicas have recorded goes into files of the run directory."""

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from persia_cli.control.membership import Member
from persia_cli.errors import WireError
from persia_cli.observe.record import RunRecord
from persia_cli.observe.recordings import PORTIONS, TracePortion, recording_of, remove_recordings
from persia_cli.observe.trace import SPANS_LIMIT, own_clock
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.joining import JoinHandler
from persia_cli.wire.job_messages import Recorded
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer, Server

log = logging.getLogger(__name__)


class Recordings:
    """Writes portions as they come, and knows which replicas have sent their last."""

    def __init__(self, server: Server, joining: JoinHandler, record: RunRecord, job: Job) -> None:
        """What an earlier start of the training has left stays, unless this one begins with its first step."""
        self._server, self._joining, self._record = server, joining, record
        self._run_dir, self._is_wanted = Path(job.run_dir), job.trace_first < job.trace_last
        self._behind_ns = time.time_ns() - time.monotonic_ns()
        self._whole: dict[str, int] = {}
        self._spans: dict[str, int] = {}
        if job.load is None:
            remove_recordings(self._run_dir)

    def unfinished(self, members: Sequence[Member]) -> set[str]:
        """Return the names of those of these replicas that have a portion to send yet."""
        unfinished = [each for each in members if self._whole.get(each.name) != each.incarnation]
        return {member.name for member in unfinished} if self._is_wanted else set()

    def on_recorded(self, peer: Peer, message: Recorded) -> None:
        """Write a portion, or count what the disk refuses, which ends no job. Raises WireError for what is none."""
        member = self._joining.find(message.sender)
        try:
            portion = PORTIONS.decode(message.portion)
        except msgspec.DecodeError as error:
            raise WireError(f"{member.name} has sent what is no portion of a trace: {error}") from error
        spans = self._spans.get(portion.process, 0) + len(portion.spans)
        if portion.replica != member.name or not self._is_wanted or spans > 2 * SPANS_LIMIT:
            raise WireError(f"{member.name} has sent a portion of a trace that nobody wants")
        self._spans[portion.process] = spans
        try:
            self._write(portion)
        except OSError as error:
            log.warning("a portion of the trace of %s is lost: %s", member.name, error)
            self._record.note_unwritten(member.name, len(portion.spans), error.strerror or str(error))
        if portion.is_last:
            self._whole[member.name] = member.incarnation
        self._server.reply(peer, Ack())

    def _write(self, portion: TracePortion) -> None:
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
                file.truncate(whole)  # or half a line would spoil the next one
                raise
