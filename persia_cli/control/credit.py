"""The permits of a rank, which limit its steps between look-up and applied update."""

from dataclasses import dataclass, field

from persia_cli.control.watermarks import Window


@dataclass(slots=True)
class Permits:
    """A limiter that starts steps in order, with at most `bound` unfinished ones.

    A step may start when every step up to `step - bound` is finished, so the watermark is never further behind.
    """

    bound: int
    next: int = 0
    end: int = 0
    finished: Window = field(default_factory=Window)

    def take(self) -> int | None:
        """Return the next step that may start, or None."""
        if self.next >= self.end or self.next - self.finished.watermark > self.bound:
            return None
        step = self.next
        self.next += 1
        return step

    def give_back(self, step: int) -> None:
        """Mark a step as finished: all servers applied its update, or, in evaluation, its batch was dropped."""
        self.finished.mark(step)

    @property
    def drained(self) -> bool:
        """Return whether every step up to `end` is finished."""
        return self.finished.watermark >= self.end - 1

    def credit(self, window: int) -> int:
        """Return the step before which loaders may send batches of this rank."""
        return self.finished.watermark + 1 + window
