"""Metrics in trackio: an SQLite file in `TRACKIO_DIR`, or the server or Space that its other variables name."""

import secrets
from collections.abc import Mapping
from typing import Any

from persia_cli.loggers.logger import Facts, Logger


class Trackio(Logger):
    """A run of a project with the job's name; trackio knows a run by its name, which some digits make unique."""

    def start(self, facts: Facts, config: Mapping[str, Any]) -> str:
        """Begin the run or go on with it."""
        import trackio

        name = facts.known or f"{facts.name}-{secrets.token_hex(2)}"
        settings: dict[str, Any] = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self._run = trackio.init(facts.project, name, config=dict(config), resume="allow", **settings)
        return name

    def line(self, split: str, step: int, time_s: float, metrics: Mapping[str, float]) -> None:
        """Log the metrics."""
        self._run.log({f"{split}/{name}": value for name, value in metrics.items()}, step=step)

    def end(self, status: str, summary: Mapping[str, float]) -> None:
        """Log the summary, and wait until all is written."""
        super().end(status, summary)
        self._run.finish()
