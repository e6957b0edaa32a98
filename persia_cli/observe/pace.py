"""The progress of a job through a number of samples, and the time that is left."""

from typing import Any

EVERY_S = 2.0
"""Seconds between two reports of progress."""


class Pace:
    """The progress of one evaluation or prediction; `now` is given in seconds."""

    def __init__(self, total: int, now: float) -> None:
        self._total = total
        self._begin_s = self._reported_s = now

    def line(self, rows: int, now: float) -> dict[str, Any] | None:
        """Return rows done, all rows, rows per second and seconds left; None if the last report was too recent."""
        if now - self._reported_s < EVERY_S:
            return None
        self._reported_s = now
        rate = rows / (now - self._begin_s)
        left = round((self._total - rows) / rate) if rate else None
        return {"rows": rows, "of": self._total, "rows_per_s": round(rate, 1), "eta_s": left}
