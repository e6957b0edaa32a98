"""The phases of a job: train up to a step, drain, evaluate or save, continue, stop."""

# Invariants:
#
# - A phase begins once every participant of the one before is done; a repeat of that report changes nothing.
# - Training phases have all steps in order, each once. A phase that is cut short ends at a step that no rank has
#   started, and the next one begins there.
# - At most one checkpoint is being written. The next one, and the end, begin only when it is complete or aborted.
# - A step is saved at most once before its evaluation and once after it, unless a save fails.
# - The numbers of instructions rise.

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

from persia_cli.control.evaluation_tracker import EvaluationTracker
from persia_cli.control.portions import Portions
from persia_cli.errors import WireError


@dataclass(slots=True)
class StepAgreement:
    """The answers of ranks that start no more steps until all of them have answered.

    All ranks continue to the highest of the answers, and no further; then no step is in flight anywhere.
    """

    number: int
    """The number of the instruction that the ranks answer."""
    first: int
    last: int
    """The steps [first, last) of the phase."""
    ranks: frozenset[str]
    answers: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, step: int) -> int | None:
        """Add the first step that a rank has not started; returns the agreed one with the last answer, else None.

        A repeat changes nothing. Raises WireError if the rank has no part in the phase, or the step.
        """
        if name not in self.ranks or not self.first <= step <= self.last:
            raise WireError(f"{name} cannot stop at step {step} of the steps {self.first} to {self.last}")
        if name in self.answers:
            return None
        self.answers[name] = step
        # A step that one rank has started is awaited by all others, in the sum of gradients and at the gates of
        # servers: so the highest answer is the first step that no rank has started.
        return max(self.answers.values()) if self.answers.keys() == self.ranks else None


PhaseKind = Literal["training", "evaluating", "predicting", "saving", "idle", "done"]


Trigger = Literal["steps", "minutes", "request", "signal", "best", "end", "publish"]
"""The reason for saving: every so many steps or minutes, on request, on a signal, as the best, or at the end; or a cut
for the publisher, which is no checkpoint."""
AWAITED: tuple[Trigger, ...] = ("request", "signal", "end")
"""The reasons for which a process waits for the checkpoint, so that it is written at full speed."""


@dataclass(slots=True)
class Phase:
    """A part of the job between two drains.

    `first` and `last` are the steps [first, last) of a training, evaluating or predicting phase, numbered within their
    split over the whole job. Of a saving phase, `last` is the step that is saved; of an idle one, the step before
    which it waits. `last` becomes less if the phase is cut short.
    """

    kind: PhaseKind
    first: int = 0
    last: int = 0
    is_cut: bool = field(default=False, compare=False)
    """True if the phase ended before its planned end."""
    trigger: Trigger = field(default="end", compare=False)
    """Of a saving phase: the reason for saving."""
    is_last: bool = field(default=False, compare=False)
    """Of a cut for the publisher: nothing is trained after it."""
    evaluation_due: bool = field(default=False, compare=False)
    """Of a saving phase: the model is due for evaluation at this step, which has not happened yet."""
    reductions: tuple[int, int] = (0, 0)
    """Of a training phase: the number of reductions of the learning rates of dense weights and of rows."""


@dataclass(slots=True)
class PendingRequests:
    """The requests to a job outside its schedule, fulfilled as soon as possible."""

    save: Trigger | None = None
    """The reason of a requested checkpoint; the schedule clears it once the step is saved."""
    end: bool = False
    """True if the job must end after that."""
    publish: bool = False
    """True if a cut for the publisher is due; the schedule clears it."""


def schedule(
    steps: int,
    eval_steps: int,
    *,
    eval_every: int | None = None,
    save_every: int | None = None,
    save_at_end: bool = False,
    tracker: EvaluationTracker | None = None,
    first: int = 0,
    requests: PendingRequests | None = None,
    evaluation_due: bool = False,
    is_saved: bool = False,
    publishes: bool = False,
) -> Iterator[Phase]:
    """Yield the phases of training the steps [first, steps), with an evaluation split of `eval_steps` steps.

    After each evaluation, which must be added to `tracker` before the next phase is requested, `tracker` may end the
    job or select the step for saving. `requests` is read whenever a phase is over. With `evaluation_due`, the
    evaluation at step `first` is still due; with `is_saved`, the model of that step is in a checkpoint of this run.
    With `publishes`, a cut for the publisher comes before the last save.

    Save before the first and the last evaluation, because an evaluation can fail on bad rows. The save after it only
    updates the manifest. After training up to a step, these phases follow:

    | at the step | phases |
    | --- | --- |
    | a save is due | save |
    | an evaluation is due | evaluate |
    | both are due | evaluate, save |
    | an evaluation is due, and is the best so far | evaluate, save |
    | the first evaluation, whose step is saved as the best | save, evaluate, save |
    | the last step, saved and evaluated | save, evaluate, save |
    | a save is requested | save |
    | a cut is due | save, as the trigger `publish` |
    | the end is requested | save, done |
    | the end is requested while an evaluation is due | save with `evaluation_due`, done |
    """
    tracker, requests = tracker or EvaluationTracker(), requests or PendingRequests()
    position, passes, over = first, 0, False
    saved = (first, evaluation_due) if is_saved or not first else None
    while (position < steps or evaluation_due) and not over and not requests.end:
        if not evaluation_due:
            last = _next_stop(position, steps, eval_every, save_every)
            phase = Phase("training", position, last, reductions=tracker.reductions)
            yield phase
            position = phase.last
            stops = position == steps or (eval_every and position % eval_every == 0)
            evaluation_due = bool(eval_steps and stops and position > phase.first)
        improved = False
        at_end = position == steps and save_at_end
        is_certain = at_end or (not passes and tracker.saves_next)
        if evaluation_due and is_certain and not requests.end and (saved is None or saved[0] != position):
            saved = (position, True)
            due = bool(save_every and position % save_every == 0)
            trigger = _trigger(due, not at_end, at_end, PendingRequests(requests.save), at_end)
            yield Phase("saving", last=position, trigger=trigger or "end", evaluation_due=True)
        if evaluation_due and not requests.end:
            phase = Phase("evaluating", passes * eval_steps, (passes + 1) * eval_steps)
            yield phase
            passes, evaluation_due = passes + 1, phase.is_cut
            if not evaluation_due:
                over, improved = tracker.over, tracker.improved
        over |= position == steps and not evaluation_due
        if requests.publish or (publishes and over):
            requests.publish = False
            yield Phase("saving", last=position, trigger="publish", is_last=over)
        trigger = _trigger(
            bool(save_every and position % save_every == 0), improved, over and save_at_end, requests, over
        )
        requests.save = None
        if trigger and saved != (position, evaluation_due):
            saved = (position, evaluation_due)
            yield Phase("saving", last=position, trigger=trigger, evaluation_due=evaluation_due)
    yield Phase("done", is_cut=not over and (position < steps or evaluation_due))


def schedule_of_portions(
    portions: Portions,
    first: int,
    *,
    steps: int,
    scores_next: bool = False,
    save_every: int | None = None,
    save_at_end: bool = False,
    requests: PendingRequests | None = None,
    evaluation_due: bool = False,
    is_saved: bool = False,
    publishes: bool = False,
) -> Iterator[Phase]:
    """Yield the phases of training on data that grows, from step `first` to `steps` or the end of `portions`.

    Each portion is trained in a separate phase; with `scores_next` it is evaluated before that. While the next one
    is not known, the job is idle: that phase ends once `portions` or `requests` have changed. With `publishes`, a cut
    for the publisher comes before that, too. The other arguments are those of `schedule`, and so is what is saved;
    evaluations number their steps from 0 on.
    """
    requests = requests or PendingRequests()
    position, published, scored = first, first, 0
    is_due = scores_next and (evaluation_due or not first)
    saved = first if is_saved or not first else None
    while not requests.end and not portions.is_end(position, steps):
        portion, is_multiple = portions.of(position), False
        if portion is None:
            yield Phase("idle", last=position)
        elif is_due:
            evaluation = Phase("evaluating", scored, scored + portion.steps)
            yield evaluation
            scored, is_due = evaluation.last, evaluation.is_cut
        else:
            training = Phase(
                "training", position, _next_stop(position, min(steps, portions.end_of(portion)), save_every)
            )
            yield training
            position, end = training.last, portions.end_of(portion)
            is_due = scores_next and position == end and position > training.first
            is_multiple = bool(save_every and position % save_every == 0)
        is_over = portions.is_end(position, steps)
        is_new = position > published and portions.of(position) is None
        if requests.publish or (publishes and (is_over or is_new)):
            requests.publish, published = False, position
            yield Phase("saving", last=position, trigger="publish", is_last=is_over)
        trigger = _trigger(is_multiple, False, is_over and save_at_end, requests, is_over)
        requests.save = None
        if trigger and saved != position:
            saved = position
            yield Phase("saving", last=position, trigger=trigger, evaluation_due=is_due)
    yield Phase("done", is_cut=not portions.is_end(position, steps))


def _next_stop(position: int, steps: int, *intervals: int | None) -> int:
    return min([steps, *(position + every - position % every for every in intervals if every)])


def _trigger(every: bool, improved: bool, at_end: bool, requests: PendingRequests, over: bool) -> Trigger | None:
    """Return the reason to save the model now, None if there is none."""
    if every:
        return "steps"
    if requests.save:
        return requests.save
    if requests.end and not over:
        return "signal"
    return "best" if improved else "end" if at_end else None


def in_turns(phases: Iterator[Phase], steps: int) -> Iterator[Phase]:
    """Split training into parts of at most `steps` steps, each after an idle phase, which the driver ends."""
    for phase in phases:
        if phase.kind != "training":
            yield phase
            continue
        for first in range(phase.first, phase.last, steps):
            pause = Phase("idle", last=first)
            turn = Phase("training", first, min(first + steps, phase.last), reductions=phase.reductions)
            yield pause
            if pause.is_cut:
                phase.last = first
                break
            yield turn
            if turn.is_cut:
                phase.last = turn.last
                break


@dataclass(slots=True)
class PhaseMachine:
    """A state machine of the phases; a phase is over when every participant has reported it done.

    Files of a checkpoint may still be written when its saving phase is over. Until they all are, neither the next
    checkpoint nor the end can begin.
    """

    phases: Iterator[Phase]
    participants: dict[PhaseKind, frozenset[str]]
    current: Phase | None = None
    number: int = 0
    """The number of the last instruction of the job."""
    waiting: set[str] = field(default_factory=set)
    saved_step: int = 0
    """Step of the last checkpoint that was begun."""
    writing: set[str] = field(default_factory=set)
    """Participants that have not yet written their part of that checkpoint."""
    agreement: StepAgreement | None = None
    """The agreement on the step at which the phase is cut short, once it has begun."""
    _upcoming: Phase | None = None
    _saving: Phase | None = None
    """The phase in which that checkpoint was begun."""
    first_number: int = 0
    """The number of the instruction that began the phase."""

    @property
    def is_blocked(self) -> bool:
        """True if the next phase cannot begin before the last checkpoint is complete; ask only between phases."""
        kind = self._next_phase().kind
        if kind == "evaluating" and self._saving is not None and self._saving.evaluation_due:
            return bool(self.writing)  # a model is saved before its evaluation, since evaluations may fail
        return bool(self.writing) and kind in ("saving", "done")

    def _next_phase(self) -> Phase:
        """Return the phase that `advance` will enter."""
        self._upcoming = self._upcoming or next(self.phases)
        return self._upcoming

    def advance(self) -> Phase:
        """Enter the next phase and return it; its instruction carries `number`."""
        assert not self.waiting
        assert not self.is_blocked
        self.current, self._upcoming = self._next_phase(), None
        self.number += 1
        self.first_number = self.number
        self.waiting = set(self.participants[self.current.kind])
        if self.current.kind == "saving":
            self.saved_step, self.writing, self._saving = self.current.last, set(self.waiting), self.current
        self.agreement = None
        return self.current

    def is_last_save(self, step: int) -> bool:
        """Return whether the last checkpoint was of this step, and the end comes next; ask only between phases."""
        return self._next_phase().kind == "done" and self._saving is not None and self._saving.last == step

    def save_again(self) -> None:
        """Repeat the last checkpoint before the next phase."""
        assert self._saving is not None
        self.phases, self._upcoming = chain([self._next_phase()], self.phases), replace(self._saving)

    def finish_writing(self, name: str, step: int) -> bool:
        """Record that a participant's part of a checkpoint is written; returns False for a repeat."""
        if step != self.saved_step or name not in self.writing:
            return False
        self.writing.discard(name)
        return True

    def finish(self, name: str, number: int) -> bool:
        """Record that a participant is done; returns True if that ends the phase. Repeats change nothing."""
        if number != self.first_number or name not in self.waiting:
            return False
        self.waiting.discard(name)
        return not self.waiting

    def begin_agreement(self) -> bool:
        """Begin the agreement that cuts a phase of steps short; return False if it cannot be, or has already begun.

        The instruction to hold carries `number`.
        """
        phase = self.current
        # A phase that is over may wait for the files of a checkpoint; then there is nothing to cut.
        if phase is None or phase.kind not in ("training", "evaluating") or self.agreement or not self.waiting:
            return False
        self.number += 1
        self.agreement = StepAgreement(self.number, phase.first, phase.last, self.participants[phase.kind])
        return True

    def cut(self, name: str, number: int, step: int) -> Phase | None:
        """Record the first step that a rank has not started; return the phase once all ranks have answered.

        The phase's `last` is the agreed step from then on, and the instruction for it carries `number`. Repeats and
        answers about another phase change nothing. Raise WireError for a step outside the phase.
        """
        if self.agreement is None or self.current is None or self.agreement.number != number:
            return None
        agreed = self.agreement.add(name, step)
        if agreed is None:
            return None
        self.number += 1
        self.current.is_cut = agreed < self.current.last
        self.current.last = agreed
        return self.current

    def stop_before(self, step: int) -> Phase | None:
        """End the phase before a step that no rank can finish; return the phase, or None if the step is not in it.

        The instruction for it carries `number`. No other agreement follows, and one that is not complete is void.
        """
        phase = self.current
        if phase is None or not self.waiting or not phase.first <= step < phase.last:
            return None
        self.number += 1
        phase.last, phase.is_cut = step, True
        self.agreement = StepAgreement(self.number, phase.first, step, frozenset())
        return phase

    @property
    def is_cut(self) -> bool:
        """True if the phase is, or was, cut short; for the last phase, if the job ends before its planned end."""
        return self.current is not None and self.current.is_cut

    def wake(self) -> None:
        """End the phase of a job that is idle, since there is a portion to train, or a request."""
        if self.current is not None and self.current.kind == "idle":
            self.current.is_cut = True
            self.waiting.clear()
