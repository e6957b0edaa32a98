"""The order of steps: the finished ones, those that a rank may start, and those that a server holds.

NN workers and embedding workers use these windows. Exactly-once updates depend on those of embedding servers, which
lie in the memory of their rows: `store/requests.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from persia_cli.errors import WireError

LookUp = TypeVar("LookUp")
Update = TypeVar("Update")


@dataclass(slots=True)
class Window:
    """The finished steps of one sequence: all up to `watermark`, and a few above it."""

    watermark: int = -1
    limit: int = 4096
    above: set[int] = field(default_factory=set)

    def done(self, step: int) -> bool:
        """Return True if the step is finished."""
        return step <= self.watermark or step in self.above

    def check(self, step: int) -> None:
        """Raise WireError for a step so far ahead of the watermark that the sender cannot have permits for it."""
        if step > self.watermark + self.limit:
            raise WireError(
                f"step {step} is more than {self.limit} steps ahead of the last finished step {self.watermark}"
            )

    def mark(self, step: int) -> bool:
        """Mark the step as finished; return False if it was already. Raise WireError as `check` does."""
        if self.done(step):
            return False
        self.check(step)
        self.above.add(step)
        self._rise()
        return True

    def skip(self, watermark: int) -> bool:
        """Mark all steps up to this one as finished; return True if the watermark rises."""
        if watermark <= self.watermark:
            return False
        self.watermark = watermark
        self.above = {step for step in self.above if step > watermark}
        self._rise()
        return True

    def _rise(self) -> None:
        while self.watermark + 1 in self.above:
            self.watermark += 1
            self.above.remove(self.watermark)


@dataclass(slots=True)
class Permits:
    """A limiter that starts steps in order.

    A step may start when the gradients of every step up to `step - bound` are sent. Its look-up is sent after them, and
    servers hold it until they have applied them, so their watermark is never further behind.
    """

    bound: int
    next: int = 0
    end: int = 0
    finished: Window = field(default_factory=Window)
    sent: int = -1
    """Last step whose gradients are sent."""
    paused: bool = False
    """True while no more steps may start, until the last step of the phase is agreed."""

    def next_step(self) -> int | None:
        """Return the next step that may start, or None."""
        if self.paused or self.next >= self.end or self.next - max(self.sent, self.finished.watermark) > self.bound:
            return None
        step = self.next
        self.next += 1
        return step

    def begin(self, end: int) -> None:
        """Allow steps up to (not including) `end`; later ones that have started are forgotten."""
        assert end > self.finished.watermark, "no phase ends before a finished step"
        self.end, self.next, self.paused = end, min(self.next, end), False

    def pause(self) -> int:
        """Start no more steps for now; return the first that has not started."""
        self.paused = True
        return self.next

    def send(self, step: int) -> None:
        """Note that the gradients of a step, and of all before it, are sent."""
        self.sent = step

    def give_back(self, step: int) -> None:
        """Mark a step as finished: all servers applied its update, or, in evaluation, its batch was dropped."""
        self.finished.mark(step)

    @property
    def drained(self) -> bool:
        """True if every step up to `end` is finished, and `end` is fixed."""
        return not self.paused and self.finished.watermark >= self.end - 1

    def credit(self, window: int) -> int:
        """Return the step before which loaders may send batches of this rank."""
        return self.finished.watermark + 1 + window


class StepGate(Generic[LookUp, Update]):
    """A gate that holds look-ups until they are due, and updates until those of all ranks have arrived.

    Payloads are opaque. A payload with the (step, rank) of a held one replaces it, since it is a repeated request.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._look_ups: dict[tuple[int, int], LookUp] = {}
        self._updates: dict[int, dict[int, Update]] = {}

    def defer_look_up(self, step: int, rank: int, look_up: LookUp) -> None:
        """Hold a look-up that may not be answered yet."""
        self._look_ups[step, rank] = look_up

    def defer_update(self, step: int, rank: int, update: Update) -> None:
        """Hold one rank's update of a step."""
        self._updates.setdefault(step, {})[rank] = update

    def complete(self, applied: int) -> list[Update] | None:
        """Return and remove the updates of the step after `applied`, in the order of ranks, if all have arrived."""
        updates = self._updates.get(applied + 1, {})
        if len(updates) < self._ranks:
            return None
        del self._updates[applied + 1]
        return [updates[rank] for rank in sorted(updates)]

    def released(self, is_due: Callable[[LookUp], bool]) -> Iterator[LookUp]:
        """Yield and remove the look-ups that are due, in the order of steps and ranks."""
        for key in sorted(self._look_ups):
            # Each is checked after the one before it was answered, which may have made it due.
            if is_due(self._look_ups[key]):
                yield self._look_ups.pop(key)
