"""The steps that are done: a watermark and a small window above it; the memory behind exactly-once."""

from dataclasses import dataclass, field

from persia_cli.errors import WireError


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


class Watermarks:
    """One window per rank, of one generation; older generations are refused."""

    def __init__(self, ranks: int, generation: int = 0, last_step: int = -1) -> None:
        self.generation = generation
        self.windows = [Window(watermark=last_step) for _ in range(ranks)]

    def of(self, rank: int, generation: int) -> Window:
        """Return the rank's window; raises WireError for an unknown rank or another generation."""
        if generation != self.generation:
            raise WireError(f"generation {generation} is over; this replica is at {self.generation}")
        if not 0 <= rank < len(self.windows):
            raise WireError(f"there is no rank {rank} in a world of {len(self.windows)}")
        return self.windows[rank]

    @property
    def lowest(self) -> int:
        """The last step that every rank has finished."""
        return min(window.watermark for window in self.windows)
