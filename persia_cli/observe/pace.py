"""How far the job has come through a number of samples, and how long the rest will take."""

from typing import Any

EVERY_S = 2.0
"""Seconds between two words of it."""


class Pace:
    """Progress of one evaluation or prediction; `now` is passed in, in seconds."""

    def __init__(self, total: int, now: float) -> None:
        self._total = total
        self._begin_s = self._told_s = now

    def line(self, rows: int, now: float) -> dict[str, Any] | None:
        """Return rows done, rows in all, rows per second and seconds left; None where it is too early to say again."""
        if now - self._told_s < EVERY_S:
            return None
        self._told_s = now
        rate = rows / (now - self._begin_s)
        left = round((self._total - rows) / rate) if rate else None
        return {"rows": rows, "of": self._total, "rows_per_s": round(rate, 1), "eta_s": left}
