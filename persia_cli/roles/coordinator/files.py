"""The coordinator's part while replicas write the files of a checkpoint, which lasts longer than its phase."""

from collections.abc import Callable, Sequence

from persia_cli.control.phases import PhaseMachine
from persia_cli.observe.journal import Journal
from persia_cli.roles.coordinator.checkpointing import Checkpointing
from persia_cli.roles.coordinator.joining import JoinHandler
from persia_cli.roles.coordinator.save_requests import SaveRequests
from persia_cli.roles.coordinator.shutdown import Shutdown
from persia_cli.wire.figures import SavedFile
from persia_cli.wire.job_messages import Saved
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer, Server


class FileHandler:
    """Gathers what replicas say of their files, and concludes the checkpoint with the last of them."""

    def __init__(
        self,
        server: Server,
        joining: JoinHandler,
        phases: PhaseMachine,
        checkpointing: Checkpointing,
        early: SaveRequests,
        events: Journal,
        dismissal: Shutdown,
        go_on: Callable[[], None],
    ) -> None:
        """`go_on` is called when a checkpoint is complete or given up: a phase may have waited for that."""
        self._server, self._joining, self._phases, self._checkpointing = server, joining, phases, checkpointing
        self._early, self._events, self._dismissal, self._go_on = early, events, dismissal, go_on

    def on_saved(self, peer: Peer, message: Saved) -> None:
        """A replica has written its files, or could not."""
        member = self._joining.find(message.sender)
        self._server.reply(peer, Ack())
        self._take(message.step, member.name, message.files, message.failure)

    def lose(self, name: str, how: str) -> None:
        """A replica has died: give up the checkpoint whose files it was writing, if it was.

        Where its new process is still to be told of the checkpoint, that process says what has become of it.
        """
        phase = self._phases.current
        if name in self._phases.writing:
            self._checkpointing.note_death()
        if phase is not None and not (phase.kind == "saving" and name in self._phases.waiting):
            self._take(self._phases.saved_step, name, (), f"{name} {how} while it wrote its rows")

    def _take(self, step: int, name: str, files: Sequence[SavedFile], failure: str) -> None:
        if self._dismissal.begun or not self._phases.note_written(name, step):
            return
        self._checkpointing.add(name, files, failure)
        if self._phases.writing:
            return
        event = self._checkpointing.conclude()
        self._events.write(**event)
        self._early.note_saved(event)
        self._go_on()
