"""Data that grows as a sequence of portions, each trained once: the present ones, and where training ends."""

# Invariants:
#
# - Portions are added in order; the steps and the samples of one begin where those of the one before end.
# - The last few are kept, so that the state is bounded, however many there were.

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from persia_cli.control.position import StepGrid

KEPT = 4
"""Number of portions that are kept: the present one, those around it, and one more for reports that come late."""
AHEAD = 2
"""Number of portions that are not trained, with the present one, up to which more are looked for."""


@dataclass(frozen=True, slots=True)
class PlannedPortion:
    """A portion as the record of the run has it."""

    number: int
    first_step: int
    first_sample: int
    rows: int
    files: Sequence[tuple[str, int, str]]
    """Path, rows, and what identifies the content of each file."""
    cursor: str
    """The planner's cursor after the last file."""
    arrived: float
    """Arrival of its first file, in seconds since 1970."""
    least: float | None = None
    greatest: float | None = None
    """The first and the last time of its samples, in seconds since 1970, if they are known."""
    expired: int = 0
    """Rows that were last used before this step have expired, by the time of the data."""

    def steps(self, batch_size: int) -> int:
        """Return the number of its steps."""
        return -(-self.rows // batch_size)


class Portions:
    """The portions of a job whose training begins at `step`, after `samples` samples; those kept are a grid."""

    def __init__(self, batch_size: int, world_size: int, step: int, samples: int) -> None:
        self._batch_size, self._world_size = batch_size, world_size
        self._before = step, samples
        self._kept: deque[tuple[PlannedPortion, StepGrid]] = deque(maxlen=KEPT)
        self.end: int | None = None
        """The step at which training ends, once it is known."""

    def add(self, portion: PlannedPortion) -> int:
        """Add the next portion; return the step at which it ends."""
        place = portion.first_step, portion.number, portion.first_sample
        self._kept.append((portion, StepGrid(portion.rows, self._batch_size, self._world_size, *place)))
        return self.last

    @property
    def last(self) -> int:
        """The step at which the last portion ends."""
        if not self._kept:
            return self._before[0]
        portion, grid = self._kept[-1]
        return portion.first_step + grid.steps

    def is_end(self, step: int, steps: int) -> bool:
        """Return True if training ends at a step, which has `steps` at most."""
        return step >= steps or (self.end is not None and step >= self.end)

    def ahead_of(self, step: int) -> int:
        """Return the number of portions that end after a step."""
        return sum(step < portion.first_step + grid.steps for portion, grid in self._kept)

    def expires_at(self, step: int) -> int:
        """Return the number of steps after which a row has expired in the portion of a step, at its end; 0 for none."""
        portion = self.of(step)
        return self.end_of(portion) - portion.expired if portion is not None and portion.expired else 0

    def of(self, step: int) -> PlannedPortion | None:
        """Return the portion that has a step; None if it is not known."""
        return next((kept for kept, grid in self._kept if kept.first_step <= step < kept.first_step + grid.steps), None)

    def from_number(self, number: int) -> list[PlannedPortion]:
        """Return the portions that are kept, from a number on."""
        return [portion for portion, _ in self._kept if portion.number >= number]

    def steps_of(self, portion: PlannedPortion) -> int:
        """Return the number of steps of a portion."""
        return portion.steps(self._batch_size)

    def end_of(self, portion: PlannedPortion) -> int:
        """Return the step at which a portion ends, or training within it."""
        last = portion.first_step + portion.steps(self._batch_size)
        return last if self.end is None else min(last, self.end)

    def end_after(self, samples: int, portion: PlannedPortion) -> int:
        """Return the first step of a portion at which so many samples are trained."""
        return portion.first_step + -(-(samples - portion.first_sample) // self._batch_size)

    def samples_before(self, step: int) -> int:
        """Return the number of samples in all steps before one of a portion that is kept, or its end."""
        for portion, grid in reversed(self._kept):
            if portion.first_step <= step:
                return min(grid.samples_before(step), portion.first_sample + portion.rows)
        return self._before[1]
