"""The gate of synchronous training on one embedding server: who waits for which step."""

from collections.abc import Iterator
from typing import Generic, TypeVar

LookUp = TypeVar("LookUp")
Update = TypeVar("Update")


class StepGate(Generic[LookUp, Update]):
    """Holds look-ups until the steps before theirs are applied, and updates until every rank's is here.

    Payloads are opaque; a payload under a (step, rank) that is already held replaces it (the sender asked again).
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._look_ups: dict[tuple[int, int], LookUp] = {}
        self._updates: dict[int, dict[int, Update]] = {}

    def hold_look_up(self, step: int, rank: int, look_up: LookUp) -> None:
        """Keep a look-up that may not be answered yet."""
        self._look_ups[step, rank] = look_up

    def hold_update(self, step: int, rank: int, update: Update) -> None:
        """Keep one rank's update of a step."""
        self._updates.setdefault(step, {})[rank] = update

    def complete(self, applied: int) -> list[Update] | None:
        """Take the updates of the step after `applied`, in the order of ranks, if every rank's is here."""
        held = self._updates.get(applied + 1, {})
        if len(held) < self._ranks:
            return None
        del self._updates[applied + 1]
        return [held[rank] for rank in sorted(held)]

    def released(self, applied: int) -> Iterator[LookUp]:
        """Take the look-ups that may be answered now that the step `applied` is."""
        ready = sorted(key for key in self._look_ups if key[0] <= applied + 1)
        return iter([self._look_ups.pop(key) for key in ready])
