"""A save: replicas write their files, possibly beyond the saving phase; then the checkpoint is published."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from persia_cli.control.phases import Phase
from persia_cli.errors import WireError
from persia_cli.plan.job import COORDINATOR
from persia_cli.roles.coordinator.checkpointing import Checkpointing
from persia_cli.roles.coordinator.context import JobContext
from persia_cli.roles.coordinator.save_requests import SaveRequests
from persia_cli.storage.remote import within
from persia_cli.store.checkpoints.saved import SavedFile, decode_files
from persia_cli.wire.job_messages import Saved, SaveModel
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer

Result = TypeVar("Result")

PUBLISHER = f"{COORDINATOR}-0"
"""The last participant of a save: it publishes the files of the others."""


class Saving:
    """The saves of a job, one after the other; only the disk worker accesses the disk."""

    def __init__(self, context: JobContext, checkpointing: Checkpointing, save_requests: SaveRequests) -> None:
        self._context, self._checkpointing, self._save_requests = context, checkpointing, save_requests
        self.has_failed, self.require_saved = checkpointing.has_failed, checkpointing.require_saved
        self._started = False
        """True once the folder is ready and replicas get the instruction to write."""

    def tidy(self) -> None:
        """Remove what an earlier start of the training left unfinished."""
        self._run("removing unfinished checkpoints", self._checkpointing.tidy, lambda _: None)

    def begin(self, phase: Phase, samples: int, then: Callable[[SaveModel | None], None]) -> None:
        """Begin a saving phase; `then` gets the instruction for the replicas, None if the model is saved already."""
        self._context.phases.writing.add(PUBLISHER)
        self._checkpointing.reset()
        self._started, state = False, self._context.record.state

        def begin() -> SaveModel | dict[str, Any] | None:
            if self._checkpointing.has(phase.last):
                # The model is saved; only its evaluation is new.
                return self._checkpointing.renew(phase.last, state)
            return self._checkpointing.begin(phase, samples, state)

        def started(work: SaveModel | dict[str, Any] | None) -> None:
            self._started = True
            if isinstance(work, dict):
                self._note(work)
            then(work if isinstance(work, SaveModel) else None)

        self._run(f"starting the checkpoint of step {phase.last:,}", begin, started)

    def _run(self, doing: str, work: Callable[[], Result], then: Callable[[Result], None]) -> None:
        """Run a task on the disk worker, within the time limit of a silent replica: a hanging store costs a save."""

        def bounded() -> Result:
            with within(self._context.run.cluster.silence_timeout_s):
                return work()

        self._context.disk.run(doing, bounded, then)

    def on_saved(self, peer: Peer, message: Saved) -> None:
        """Record the files that a replica has written, or the reason why it could not; raise WireError for others."""
        member = self._context.find(message.sender)
        try:
            files = decode_files(message.files)
        except ValueError as error:
            raise WireError(f"{member.name} has sent an invalid list of files: {error}") from error
        self._context.reply(peer, Ack())
        self._take(message.step, member.name, files, message.failure)

    def note_death(self, name: str, how: str) -> None:
        """Abort the checkpoint if a dead replica was writing files of it.

        A replica that dies before it gets the instruction to save does not disturb: its new process gets it.
        """
        phases = self._context.phases
        if name in phases.writing:
            self._checkpointing.note_death()
        if phases.current is not None and not (phases.current.kind == "saving" and name in phases.waiting):
            self._take(phases.saved_step, name, (), f"{name} {how} while it wrote its rows")

    def _take(self, step: int, name: str, files: Sequence[SavedFile], failure: str) -> None:
        phases = self._context.phases
        if self._context.stopping or not self._started or not phases.note_written(name, step):
            return
        self._checkpointing.add(name, files, failure)
        if phases.writing == {PUBLISHER}:
            self._run(f"publishing the checkpoint of step {step:,}", self._checkpointing.conclude, self._conclude)

    def _conclude(self, event: dict[str, Any]) -> None:
        self._context.phases.note_written(PUBLISHER, event["step"])
        self._note(event)

    def _note(self, event: dict[str, Any]) -> None:
        """Record the end of a save; one that has failed is tried again, at once if a death was the cause."""
        if event["event"] == "save_failed":
            event["retry_s"] = self._save_requests.retry(at_once=self._checkpointing.disturbed)
        self._context.events.write(**event)
        self._save_requests.note_saved(event)
