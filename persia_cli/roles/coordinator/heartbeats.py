"""The coordinator's part in heartbeats: what replicas say of themselves, and what they learn in return."""

from collections.abc import Callable

from persia_cli.control.phases import PhaseMachine
from persia_cli.observe.journal import Journal
from persia_cli.observe.record import RunRecord
from persia_cli.roles.coordinator.joining import JoinHandler
from persia_cli.roles.coordinator.liveness import LivenessMonitor
from persia_cli.roles.coordinator.loading import Loading
from persia_cli.roles.coordinator.recovery import RecoveryHandler
from persia_cli.roles.coordinator.reporting import Reporting
from persia_cli.roles.coordinator.shutdown import Shutdown
from persia_cli.wire.job_messages import Heartbeat
from persia_cli.wire.server import Peer, Server


class HeartbeatHandler:
    """Passes on what heartbeats say, and tells users now and then what takes long."""

    def __init__(
        self,
        server: Server,
        joining: JoinHandler,
        record: RunRecord,
        phases: PhaseMachine,
        liveness: LivenessMonitor,
        loading: Loading,
        reporting: Reporting,
        recovery: RecoveryHandler,
        dismissal: Shutdown,
        events: Journal,
        clock: Callable[[], float],
    ) -> None:
        """`clock` returns the seconds in which the coordinator has been running."""
        self._server, self._joining, self._record, self._phases = server, joining, record, phases
        self._liveness, self._loading, self._reporting, self._recovery = liveness, loading, reporting, recovery
        self._dismissal, self._events, self._clock = dismissal, events, clock

    def on_heartbeat(self, peer: Peer, message: Heartbeat) -> None:
        """A replica is alive."""
        member = self._joining.find(message.sender)
        self._record.note(member.name, message.figures, member.incarnation)
        self._recovery.note_heartbeat(member, message.heard, message.figures.counters)
        self._loading.note(member.name, message.figures.counters.counts.get("rows_loaded", 0))
        self._liveness.note(member, message.doing, message.doing_s, message.figures.counters, self._clock())
        self._server.reply(peer, self._recovery.beat(message.heard))
        if self._dismissal.begun:
            self._dismissal.note_told(member.name)

    def tell_progress(self) -> None:
        """Say now and then what takes a replica long, and how far an evaluation or a prediction has come."""
        if waiting := self._liveness.waiting(self._clock()):
            self._events.write(event="waiting", **waiting)
        if self._phases.current is not None:
            self._reporting.tell_progress(self._phases.current)
