"""Data that grows: the next portion is looked for, its steps are handed out, and the end of training is found."""

# Invariants:
#
# - Steps of a portion are assigned only when the record of the run has the portion.
# - At most one look is in flight, and none while the present and the next portion are known.
# - Training ends at the first end that `train.until` names; a trap ends it before the next portion, and the model is
#   saved first.

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from persia_cli.control.portions import AHEAD, PlannedPortion
from persia_cli.control.position import TRAIN
from persia_cli.roles.coordinator.checkpoints import Saves
from persia_cli.roles.coordinator.state import FindPortion, JobState
from persia_cli.roles.coordinator.work import WorkQueue


class Found(NamedTuple):
    """The result of a look for the next portion."""

    now: float
    """Seconds since 1970."""
    portion: PlannedPortion | None = None
    """The portion, which the record has; None if there is none yet."""
    waiting: float | None = None
    """Arrival of the first file that is in no portion yet, in seconds since 1970; None if there is none."""
    skipped: Sequence[str] = ()
    """Sentences on traps that were passed over."""
    trap: str = ""
    """A sentence on the trap that ends the training, or empty."""


class Following:
    """The portions of a job whose data grows; it does nothing in other jobs."""

    def __init__(self, state: JobState, work: WorkQueue, saves: Saves) -> None:
        self._state, self._work, self._saves = state, work, saves
        self._follow, self._until = state.run.follows, state.run.train.until
        self._is_looking = False
        self._look_at = 0.0
        self._last: tuple[Found, float] | None = None
        """The last result, and the time of its event."""
        self._grew_at = state.now
        """The time at which new files were found last, or training caught up with them."""
        if state.portions is not None and self._until is not None and self._until.samples is not None:
            state.portions.end = state.step if state.record.samples >= self._until.samples else None

    def tick(self) -> None:
        """Look for the next portion if that is due; called after every event."""
        state, portions, follow = self._state, self._state.portions, self._follow
        if portions is None or follow is None or not state.started:
            return
        step = state.step
        if self._last is not None:
            state.record.behind = self._behind()
        if portions.ahead_of(step):
            self._grew_at = state.now
        if state.is_ending or state.requests.end or portions.end is not None or self._is_looking:
            return
        if portions.ahead_of(step) < AHEAD and state.now >= self._look_at:
            self._is_looking = True
            state.start(FindPortion())

    def on_found(self, found: Found) -> None:
        """Handle the result of a look."""
        state, portions, follow = self._state, self._state.portions, self._follow
        assert portions is not None
        assert follow is not None
        self._is_looking, self._last = False, (found, state.now)
        for text in found.skipped:
            state.events.write(event="warning", text=text)
        if found.waiting is not None:
            self._grew_at = state.now
        if found.trap:
            self._saves.end_before(TRAIN, portions.last, found.trap)
            return
        if found.portion is None:
            self._look_at = state.now + follow.poll_s
            idle_s = self._until.idle_s if self._until is not None else None
            if found.waiting is None and idle_s is not None and state.now - self._grew_at >= idle_s:
                portions.end = portions.last
                state.phases.wake()
            return
        self._add(found.portion)

    def _add(self, portion: PlannedPortion) -> None:
        portions = self._state.portions
        assert portions is not None
        portions.add(portion)
        last, until = portions.last, self._until
        if until is None:
            pass
        elif until.samples is not None and until.samples <= portion.first_sample + portion.rows:
            portions.end = portions.end_after(until.samples, portion)
        elif until.time is not None and portion.greatest is not None and portion.greatest >= seconds_of(until.time):
            portions.end = last
        self._work.train(max(portion.first_step, self._state.job.first_step), last)
        self._state.phases.wake()

    def _behind(self) -> dict[str, float | None]:
        """Return the age of the oldest file that is not trained, and of the newest sample of the present portion."""
        assert self._last is not None
        assert self._state.portions is not None
        found, looked_at = self._last
        now, portion = found.now + self._state.now - looked_at, self._state.portions.of(self._state.step)
        arrived = portion.arrived if portion is not None else found.waiting
        behind: dict[str, float | None] = {"behind_s": 0.0 if arrived is None else _age(now, arrived)}
        if portion is not None and portion.greatest is not None:
            behind["behind_data_s"] = _age(now, portion.greatest)
        return behind


def _age(now: float, time: float) -> float:
    return round(max(now - time, 0.0), 1)


def seconds_of(time: str | int) -> float:
    """Return a time of the configuration in seconds since 1970, which an integer is already."""
    return time if isinstance(time, int) else datetime.fromisoformat(f"{time}+00:00").timestamp()
