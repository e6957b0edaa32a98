"""The agreement of all ranks on the step at which a phase is cut short: the first one that none of them has started."""

from dataclasses import dataclass, field

from persia_cli.errors import WireError


@dataclass(slots=True)
class StepAgreement:
    """The answers of ranks that start no more steps until all of them have answered.

    A step that one rank has started is awaited by all others, in the sum of gradients and at the gates of servers. So
    each rank goes on to the highest of the answers, and no further; then no step is in flight anywhere.
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
        return max(self.answers.values()) if self.answers.keys() == self.ranks else None
