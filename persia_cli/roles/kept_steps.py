"""The steps of a rank that keeps a memory: committed before their gradients leave, so that a later process goes on."""

import logging
import time
from collections import deque
from collections.abc import Iterator
from functools import partial

from persia_cli.errors import MemoryFileError
from persia_cli.roles.link import Link
from persia_cli.roles.nn_pipeline import Pipeline
from persia_cli.roles.rank_memory import RankMemory
from persia_cli.store.memory_file import LOAD
from persia_cli.train.dense_trainer import DenseTrainer
from persia_cli.train.distributed import World
from persia_cli.train.kept_figures import CountedStep
from persia_cli.wire.message import Array, BatchId

log = logging.getLogger(__name__)

ROOM_S = 0.01
"""Seconds between two looks at whether there is room for a step's figures."""


class KeptSteps:
    """Keeps the steps of one rank; for the training thread, but for `note_taken`."""

    def __init__(self, memory: RankMemory, link: Link, pipeline: Pipeline, world: World, synchronous: bool) -> None:
        """`synchronous` says that servers wait for all ranks' updates of a step."""
        self.memory, self._link, self._pipeline, self._world = memory, link, pipeline, world
        # An update that is applied cannot be taken back, so no rank sends it before all have committed the step.
        self._joins_ranks = world.size > 1 and not synchronous
        self._encoded: list[Array] = []
        self._unanswered: deque[int] = deque()
        """First steps of the intervals whose figures the coordinator is not known to have."""
        link.on_report_taken = self._note_taken

    def go_on(self, first: int, trainer: DenseTrainer) -> tuple[int, int]:
        """Return the step that comes next, and how many steps an earlier process had begun are done again.

        Where there was none, that is the step `first`. All ranks call this together. Raises MemoryFileError if they
        have kept no step in common, PoisonError if too many processes have died in one step.
        """
        memory = self.memory
        if not memory.is_taken_over:
            memory.note_state(first, trainer)
            memory.serve()
        following = self._world.newest_common(memory.slots.steps)
        if following is None:
            raise MemoryFileError(f"the ranks have kept dense weights of different steps: {LOAD}")
        if not memory.is_taken_over:
            return following, 0
        trainer.restore(memory.slots.read(following))
        again, kept = memory.count_death(following), memory.outbox.before(following)
        log.info("goes on with step %d; sends the gradients of %d steps again", following, len(kept))
        self._link.work.end()
        self._pipeline.send_again(kept)
        return following, again

    def counted(self, first: int, following: int) -> Iterator[tuple[int, CountedStep]]:
        """Yield the steps of a phase that begins with `first` which the coordinator has no figures of, once."""
        recorded, self._link.recorded = max(self._link.recorded, first), following
        yield from self.memory.figures.between(recorded, following)

    def begin(self, step: int) -> None:
        """Begin a step, once the coordinator has the figures in whose place those of the step come."""
        while self._unanswered and step - self._unanswered[0] >= self.memory.figures.steps:
            self._link.work.end()
            self._pipeline.check()
            time.sleep(ROOM_S)
        self.memory.begin(step)

    def hold(self, step: int, encoded: list[Array]) -> None:
        """Keep the gradients of the step under way, which leave once it is committed."""
        self.memory.outbox.put(step, encoded, self._pipeline.reductions)
        self._encoded = encoded

    def commit(self, batch: BatchId, trainer: DenseTrainer, counted: CountedStep) -> None:
        """Commit the step under way, and send its gradients."""
        self.memory.commit(batch.step, trainer, *counted)
        push = partial(self._pipeline.push, batch, self._encoded)
        self._encoded = []
        if self._joins_ranks:
            self._world.once_all_are_here(push)
        else:
            push()

    def note_reported(self, first: int) -> None:
        """Take note that the figures of an interval, which begins with a step, are on their way."""
        self._unanswered.append(first)

    def _note_taken(self) -> None:
        if self._unanswered:
            self._unanswered.popleft()
