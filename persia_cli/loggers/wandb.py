"""Metrics in Weights & Biases, which its variables `WANDB_MODE`, `WANDB_PROJECT` and others configure."""

import os
from collections.abc import Mapping
from typing import Any

from persia_cli.loggers.logger import Facts, Logger


class WandB(Logger):
    """A run with the same id at each start, of the project `WANDB_PROJECT`, by default the job's name."""

    def start(self, facts: Facts, config: Mapping[str, Any]) -> str:
        """Begin the run or go on with it; its files are in the folder of the loggers."""
        import wandb

        self._step = facts.step
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", facts.project),
            name=facts.name,
            id=facts.known,
            resume="allow",
            config=dict(config),
            dir=facts.folder,
            settings=wandb.Settings(console="off", disable_git=True, x_disable_stats=True, init_timeout=30),
        )
        return str(self._run.id)

    def line(self, split: str, step: int, time_s: float, metrics: Mapping[str, float]) -> None:
        """Log the metrics; steps must grow, and that of a test may be an earlier one."""
        self._step = max(self._step, step)
        self._run.log({f"{split}/{name}": value for name, value in metrics.items()}, step=self._step)

    def end(self, status: str, summary: Mapping[str, float]) -> None:
        """Log the summary, and wait until all is uploaded or, offline, written."""
        self._run.summary.update({f"summary/{name}": value for name, value in summary.items()})
        self._run.finish(exit_code=0 if status == "done" else 1)
