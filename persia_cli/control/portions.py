"""Data that grows as a sequence of portions, each trained once: the present ones, and where training ends."""

# Invariants:
#
# - Portions are added in order; the steps and the samples of one begin where those of the one before end.
# - The last few are kept, so that the state is bounded, however many there were.

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

KEPT = 4
"""Number of portions that are kept: the present one, those around it, and one more for reports that come late."""
AHEAD = 2
"""Number of portions that are not trained, with the present one, up to which more are looked for."""


@dataclass(frozen=True, slots=True)
class PlannedPortion:
    """A portion as the record of the run has it."""

    number: int
    first_step: int
    steps: int
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

    @property
    def end(self) -> int:
        """The step after its last one."""
        return self.first_step + self.steps


class Portions:
    """The portions of a job whose training begins at `step`, after `samples` samples; those kept are a grid."""

    def __init__(self, batch_size: int, step: int, samples: int) -> None:
        self._batch_size = batch_size
        self._before = step, samples
        self._kept: deque[PlannedPortion] = deque(maxlen=KEPT)
        self.end: int | None = None
        """The step at which training ends, once it is known."""

    def add(self, portion: PlannedPortion) -> None:
        """Add the next portion."""
        self._kept.append(portion)

    @property
    def last(self) -> int:
        """The step at which the last portion ends."""
        return self._kept[-1].end if self._kept else self._before[0]

    def is_end(self, step: int, steps: int) -> bool:
        """Return True if training ends at a step, which has `steps` at most."""
        return step >= steps or (self.end is not None and step >= self.end)

    def ahead_of(self, step: int) -> int:
        """Return the number of portions that end after a step."""
        return sum(step < portion.end for portion in self._kept)

    def expires_at(self, step: int) -> int:
        """Return the number of steps after which a row has expired in the portion of a step, at its end; 0 for none."""
        portion = self.of(step)
        return self.end_of(portion) - portion.expired if portion is not None and portion.expired else 0

    def of(self, step: int) -> PlannedPortion | None:
        """Return the portion that has a step; None if it is not known."""
        return next((portion for portion in self._kept if portion.first_step <= step < portion.end), None)

    def from_number(self, number: int) -> list[PlannedPortion]:
        """Return the portions that are kept, from a number on."""
        return [portion for portion in self._kept if portion.number >= number]

    def end_of(self, portion: PlannedPortion) -> int:
        """Return the step at which a portion ends, or training within it."""
        return portion.end if self.end is None else min(portion.end, self.end)

    def end_after(self, samples: int, portion: PlannedPortion) -> int:
        """Return the first step of a portion at which so many samples are trained."""
        return portion.first_step + -(-(samples - portion.first_sample) // self._batch_size)

    def samples_before(self, step: int) -> int:
        """Return the number of samples in all steps before one of a portion that is kept, or its end."""
        for portion in reversed(self._kept):
            if portion.first_step <= step:
                return portion.first_sample + min((step - portion.first_step) * self._batch_size, portion.rows)
        return self._before[1]
