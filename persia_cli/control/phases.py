"""The phases of a job: train up to a step, drain, evaluate or save, go on, stop."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from persia_cli.control.evaluation_tracker import EvaluationTracker

PhaseKind = Literal["training", "evaluating", "predicting", "saving", "paused", "done"]


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the job between two drains.

    `first` and `last` are the steps [first, last) of a training, evaluating or predicting phase, numbered within their
    split over the whole job; of a saving phase `last` is the step that is saved, of a paused one the step before which
    it waits.
    """

    kind: PhaseKind
    first: int = 0
    last: int = 0


def schedule(
    steps: int,
    eval_steps: int,
    eval_every: int | None,
    save_every: int | None,
    save_at_end: bool,
    tracker: EvaluationTracker | None = None,
    first: int = 0,
) -> Iterator[Phase]:
    """Yield the phases of training the steps [first, steps), with an evaluation split of `eval_steps` steps.

    After each evaluation, which must be added to `tracker` before the next phase is requested, `tracker` may end the
    job or have the step saved.
    """
    position, passes, ended = first, 0, steps == first
    tracker = tracker or EvaluationTracker()
    while not ended:
        stops = [position + every - position % every for every in (eval_every, save_every) if every]
        stop = min([*stops, steps])
        yield Phase("training", position, stop)
        position = stop
        ended, improved = position == steps, False
        if eval_steps and (ended or (eval_every and position % eval_every == 0)):
            yield Phase("evaluating", passes * eval_steps, (passes + 1) * eval_steps)
            passes += 1
            ended, improved = ended or tracker.over, tracker.improved
        if improved or (ended and save_at_end) or (save_every and position % save_every == 0):
            yield Phase("saving", last=position)
    yield Phase("done")


def evaluation_only(eval_steps: int) -> Iterator[Phase]:
    """Yield the phases of a job that evaluates a saved model."""
    yield Phase("evaluating", 0, eval_steps)
    yield Phase("done")


def prediction_only(steps: int) -> Iterator[Phase]:
    """Yield the phases of a job that scores samples by a saved model."""
    yield Phase("predicting", 0, steps)
    yield Phase("done")


def in_turns(phases: Iterator[Phase], steps: int) -> Iterator[Phase]:
    """Cut training into turns of at most `steps` steps, each after a paused phase, which the driver ends."""
    for phase in phases:
        if phase.kind != "training":
            yield phase
            continue
        for first in range(phase.first, phase.last, steps):
            yield Phase("paused", last=first)
            yield Phase("training", first, min(first + steps, phase.last))


@dataclass(slots=True)
class PhaseMachine:
    """A state machine of the phases; a phase is over when every participant has reported it done.

    Files of a checkpoint may still be written when its saving phase is over. Until they all are, neither the next
    checkpoint nor the end can begin; with `waits_for_files`, no other phase either.
    """

    phases: Iterator[Phase]
    participants: dict[PhaseKind, frozenset[str]]
    waits_for_files: bool = False
    current: Phase | None = None
    number: int = 0
    waiting: set[str] = field(default_factory=set)
    saved_step: int = 0
    """Step of the last checkpoint that was begun."""
    writing: set[str] = field(default_factory=set)
    """Participants that have not yet written their part of that checkpoint."""
    _upcoming: Phase | None = None

    @property
    def held(self) -> bool:
        """True if the next phase cannot begin before the last checkpoint is complete; ask only between phases."""
        if self._upcoming is None:
            self._upcoming = next(self.phases)
        return bool(self.writing) and (self.waits_for_files or self._upcoming.kind in ("saving", "done"))

    def advance(self) -> Phase:
        """Enter the next phase and return it; its instruction carries `number`."""
        self.current = self._upcoming or next(self.phases)
        self._upcoming = None
        self.number += 1
        self.waiting = set(self.participants[self.current.kind])
        if self.current.kind == "saving":
            self.saved_step, self.writing = self.current.last, set(self.waiting)
        return self.current

    def note_written(self, name: str, step: int) -> bool:
        """Record that a participant's part of a checkpoint is written; returns False for a repeat."""
        if step != self.saved_step or name not in self.writing:
            return False
        self.writing.discard(name)
        return True

    def finish(self, name: str, number: int) -> bool:
        """Record that a participant is done; returns True if that ends the phase. Repeats change nothing."""
        if number != self.number or name not in self.waiting:
            return False
        self.waiting.discard(name)
        return not self.waiting
