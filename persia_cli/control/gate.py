"""The gate of synchronous training on one embedding server: look-ups and updates that wait for a step."""

from collections.abc import Iterator
from typing import Generic, TypeVar

LookUp = TypeVar("LookUp")
Update = TypeVar("Update")


class StepGate(Generic[LookUp, Update]):
    """A gate that holds look-ups until all earlier steps are applied, and updates until those of all ranks are here.

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

    def released(self, applied: int) -> Iterator[LookUp]:
        """Yield and remove the look-ups that may be answered after step `applied`."""
        ready = sorted(key for key in self._look_ups if key[0] <= applied + 1)
        return iter([self._look_ups.pop(key) for key in ready])
