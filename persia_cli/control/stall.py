"""The detection of a stalled job, whose replicas are all alive but wait for each other forever."""

from typing import Any


class StallDetector:
    """A detector of the time since the last progress; `now` is given in seconds.

    A change of a replica's figures is progress. The caller leaves out figures that change by themselves (CPU time,
    repeated messages).
    """

    def __init__(self) -> None:
        self._figures: dict[str, Any] = {}
        self._last_s = 0.0

    def note(self, name: str, figures: Any, now: float) -> None:
        """Store a replica's figures."""
        if self._figures.get(name) != figures:
            self._figures[name] = figures
            self._last_s = now

    def restart(self, now: float) -> None:
        """Record progress that no figure shows: a new phase, or work that may take long."""
        self._last_s = now

    def still_s(self, now: float) -> float:
        """Return the seconds since the last progress."""
        return now - self._last_s
