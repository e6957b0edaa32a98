"""The coordinator's part when an embedding server loses its memory and the others keep theirs (partial recovery)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from persia_cli.config.schema import Run, SyncMode
from persia_cli.control.membership import Member
from persia_cli.control.phases import PhaseMachine
from persia_cli.errors import count
from persia_cli.observe.record import RunRecord
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job, Reload
from persia_cli.plan.replacement import TRUSTED
from persia_cli.roles.coordinator.checkpointing import Checkpointing
from persia_cli.roles.coordinator.joining import JoinHandler
from persia_cli.roles.coordinator.progression import Progression
from persia_cli.store.layout import partitions_of
from persia_cli.wire.figures import LOST, SINCE


@dataclass(slots=True)
class Losses:
    """Updates that one server has lost: up to the step `since` of the checkpoint that its rows are of, and after it.

    What a process lost since a checkpoint counts once, though one after the other may have to load that checkpoint.
    """

    since: int = 0
    before: int = 0
    after: int = 0
    told: int = 0
    """Those that were told of in events."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.before + self.after

    def note(self, since: int, lost: int) -> None:
        """Take what a process says."""
        if since > self.since:
            self.since, self.before = since, self.total
        self.after = lost


class LostMemory:
    """Knows with what a new process of an embedding server begins, and adds up what is lost.

    Without `recovery.lost_memory=partial` nothing ever is.
    """

    def __init__(
        self,
        run: Run,
        job: Job,
        joining: JoinHandler,
        phases: PhaseMachine,
        checkpointing: Checkpointing,
        record: RunRecord,
        progression: Progression,
    ) -> None:
        """It lets `joining` know what a new process gets, and when."""
        self._run, self._job, self._phases, self._checkpointing = run, job, phases, checkpointing
        self._record, self._progression = record, progression
        joining.job_of, joining.must_wait = self.job_of, self.must_wait
        self._layout = embedding_layout(run)
        self.is_replaced = run.recovery.lost_memory == "partial" and job.task == "train"
        """True if a server whose memory is lost gets a new process."""
        self._losses: dict[str, Losses] = {}
        self._empty: set[str] = set()
        """Servers whose memory is gone, of which no new process has begun yet."""
        ranks, servers = run.cluster.nn_workers, run.cluster.embedding_servers
        self._updates = max(1, (job.steps - job.first_step) * ranks * servers)
        """Updates of all servers in the whole training."""

    # A new process

    def note_death(self, name: str, exit_code: int) -> None:
        """Note how a server's process has ended."""
        if exit_code not in TRUSTED:
            self._empty.add(name)

    def must_wait(self, member: Member) -> bool:
        """Return whether a new process has to wait until a checkpoint is whole that has the rows it needs."""
        writing = self._phases.writing
        if not self.is_replaced or member.name not in self._empty or member.name in writing:
            return False
        return self._checkpointing.is_underway(writing)

    def job_of(self, member: Member) -> Job:
        """Return the job as a replica gets it: a server's new process may have to load rows in the middle of it."""
        self._empty.discard(member.name)
        if not self.is_replaced or member.role != "embedding-server" or member.incarnation == 1:
            return self._job
        phase = self._phases.current
        assert phase is not None, "no process is replaced before the job begins"
        saved = phase.kind == "saving" and member.name not in self._phases.waiting
        in_training = phase.kind == "training"
        totals = self._record.totals_of(member.index)
        reload = Reload(
            finished=phase.first if in_training else self._progression.step,
            is_drained=not in_training,
            number=self._phases.number,
            saved=self._phases.number if saved else 0,
            hits=totals.hits,
            misses=totals.misses,
            evicted=totals.evicted,
        )
        load, step = self._newest
        warm = self._job.warm if load is None else None
        return replace(self._job, load=load, first_step=step, warm=warm, reload=reload)

    @property
    def _newest(self) -> tuple[str | None, int]:
        """Address and step of the checkpoint that rows are loaded from; None and the first step if there is none."""
        return self._checkpointing.newest or (self._job.load, self._job.first_step)

    def refusal(self, name: str) -> str | None:
        """Return why a server whose memory is lost now gets no new process: it is certain to cost too much."""
        if not self.is_replaced or name not in self._empty or isinstance(self._run.mode, SyncMode):
            return None
        # Steps in the record are trained; their last updates may be under way.
        steps = self._record.step - self._run.mode.staleness - self._newest[1]
        return self._excess(name, max(0, steps) * self._run.cluster.nn_workers)

    # What is lost

    def note(self, name: str, updates: Mapping[str, int]) -> str | None:
        """Take a server's figures; returns why the job cannot go on, if too much is lost."""
        if LOST not in updates:
            return None
        # A server that owns no rows has got updates without content.
        lost = updates[LOST] if self._tables_of(name) else 0
        self._losses.setdefault(name, Losses()).note(updates[SINCE], lost)
        return self._excess(name)

    def _excess(self, name: str, more: int = 0) -> str | None:
        if not self._tables_of(name):
            return None
        lost, limit = more + sum(losses.total for losses in self._losses.values()), self._run.recovery.max_lost_updates
        if lost <= limit * self._updates:
            return None
        return (
            f"with the memory of {name} {count(lost, 'update')} of {self._updates:,} "
            f"{'are' if lost > 1 else 'is'} lost ({lost / self._updates:.2%}), "
            f"more than recovery.max_lost_updates={limit:g} allows; save more often, or allow more"
        )

    def is_known(self, updates: Mapping[str, int]) -> bool:
        """Return whether a server's figures tell what was lost with the memory of the process before, if any was."""
        return SINCE not in updates or LOST in updates

    def tell(self, name: str) -> dict[str, Any]:
        """Return what an event says of a server's losses since the last one: in all, and for each of its tables."""
        losses = self._losses.get(name)
        if losses is None:
            return {"lost": 0}
        new, losses.told = max(0, losses.total - losses.told), losses.total
        return {"lost": new, "loaded": losses.since, "lost_of_tables": dict.fromkeys(self._tables_of(name), new)}

    def _tables_of(self, name: str) -> list[str]:
        """Return the tables of which a server has rows."""
        index, servers = int(name.rpartition("-")[2]), self._run.cluster.embedding_servers
        groups = [each for each in self._layout.groups if len(partitions_of(each.partitions, index, servers))]
        return [table.name for group in groups for table in group.tables]
