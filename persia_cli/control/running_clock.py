"""Time in which this process ran: it cannot count silence of others while it was suspended itself."""

LONGEST_GAP_S = 1.0
"""Longest time between two readings of the clock that counts; callers read it several times a second."""


class RunningClock:
    """The seconds in which this process ran; `now` is given in seconds of a monotonic clock.

    A debugger, a paused container or a batch system may suspend a process for minutes. In that time it received no
    messages, and the other processes were most likely suspended too.
    """

    def __init__(self, now: float) -> None:
        self._last_s = now
        self._ran_s = 0.0

    def at(self, now: float) -> float:
        """Return the seconds since the beginning; of a gap between two calls at most LONGEST_GAP_S counts."""
        self._ran_s += min(now - self._last_s, LONGEST_GAP_S)
        self._last_s = now
        return self._ran_s
