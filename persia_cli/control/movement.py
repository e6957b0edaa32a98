"""Whether a job still moves: replicas can all be alive and yet wait for each other for ever."""

from typing import Any


class Movement:
    """Remembers when anything last moved. `now` is passed in, in seconds.

    A replica moves when its figures change; figures that change by themselves (CPU time, repeated messages) are left
    out by the caller.
    """

    def __init__(self) -> None:
        self._figures: dict[str, Any] = {}
        self._last_s = 0.0

    def note(self, name: str, figures: Any, now: float) -> None:
        """Take a replica's figures."""
        if self._figures.get(name) != figures:
            self._figures[name] = figures
            self._last_s = now

    def restart(self, now: float) -> None:
        """Something moved that shows in no figure, such as the phase."""
        self._last_s = now

    def still_s(self, now: float) -> float:
        """Return for how long nothing has moved."""
        return now - self._last_s
