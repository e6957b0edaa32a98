"""The order of steps: which are done, which a rank may start, and what a server holds back in sync mode.

A watermark and a small window above it say which steps are done; they are the memory behind exactly-once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from persia_cli.errors import WireError

LookUp = TypeVar("LookUp")
Update = TypeVar("Update")


@dataclass(slots=True)
class Window:
    """The steps of one sequence that are done: all up to `watermark`, and a few above it."""

    watermark: int = -1
    limit: int = 4096
    above: set[int] = field(default_factory=set)

    def done(self, step: int) -> bool:
        """Return True if the step is done."""
        return step <= self.watermark or step in self.above

    def check(self, step: int) -> None:
        """Raise WireError for a step so far ahead of the watermark that the sender cannot have permits for it."""
        if step > self.watermark + self.limit:
            raise WireError(
                f"step {step} is more than {self.limit} steps ahead of the last finished step {self.watermark}"
            )

    def mark(self, step: int) -> bool:
        """Mark the step done; returns False if it was done already. Raises WireError as `check` does."""
        if self.done(step):
            return False
        self.check(step)
        self.above.add(step)
        while self.watermark + 1 in self.above:
            self.watermark += 1
            self.above.remove(self.watermark)
        return True

    def skip(self, watermark: int) -> bool:
        """Mark all steps up to this one done; returns True if that is news."""
        if watermark <= self.watermark:
            return False
        self.watermark = watermark
        self.above = {step for step in self.above if step > watermark}
        while self.watermark + 1 in self.above:
            self.watermark += 1
            self.above.remove(self.watermark)
        return True


@dataclass(slots=True)
class Permits:
    """A limiter that starts steps in order, with at most `bound` unfinished ones.

    A step may start when every step up to `step - bound` is finished, so the watermark is never further behind.
    """

    bound: int
    next: int = 0
    end: int = 0
    finished: Window = field(default_factory=Window)
    held: bool = False
    """True while no more steps may start, until it is known which is to be the last."""

    def take(self) -> int | None:
        """Return the next step that may start, or None."""
        if self.held or self.next >= self.end or self.next - self.finished.watermark > self.bound:
            return None
        step = self.next
        self.next += 1
        return step

    def begin(self, end: int) -> None:
        """Let steps start up to (not including) `end`."""
        self.end, self.held = end, False

    def hold(self) -> int:
        """Start no more steps for now; returns the first that has not started."""
        self.held = True
        return self.next

    def give_back(self, step: int) -> None:
        """Mark a step as finished: all servers applied its update, or, in evaluation, its batch was dropped."""
        self.finished.mark(step)

    @property
    def drained(self) -> bool:
        """Return whether every step up to `end` is finished, and `end` is known."""
        return not self.held and self.finished.watermark >= self.end - 1

    def credit(self, window: int) -> int:
        """Return the step before which loaders may send batches of this rank."""
        return self.finished.watermark + 1 + window


class StepGate(Generic[LookUp, Update]):
    """A gate that holds look-ups until they are due, and updates until those of all ranks are here.

    Payloads are opaque. A payload with the (step, rank) of a held one replaces it, since it is a repeated request.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._look_ups: dict[tuple[int, int], LookUp] = {}
        self._updates: dict[int, dict[int, Update]] = {}

    def hold_look_up(self, step: int, rank: int, look_up: LookUp) -> None:
        """Hold a look-up that may not be answered yet."""
        self._look_ups[step, rank] = look_up

    def hold_update(self, step: int, rank: int, update: Update) -> None:
        """Hold one rank's update of a step."""
        self._updates.setdefault(step, {})[rank] = update

    def complete(self, applied: int) -> list[Update] | None:
        """Return and remove the updates of the step after `applied`, in the order of ranks, if all are here."""
        held = self._updates.get(applied + 1, {})
        if len(held) < self._ranks:
            return None
        del self._updates[applied + 1]
        return [held[rank] for rank in sorted(held)]

    def released(self, is_due: Callable[[LookUp], bool]) -> Iterator[LookUp]:
        """Yield and remove the look-ups that are due, in the order of steps and ranks; each is asked after the last."""
        for key in sorted(self._look_ups):
            if is_due(self._look_ups[key]):
                yield self._look_ups.pop(key)
