"""Metrics on the MLflow server of `MLFLOW_TRACKING_URI`; the full MLflow also writes a database file.

A server keeps equal values of one step and time once, so that a line that is sent twice changes nothing.
"""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from persia_cli.loggers.logger import Facts, Logger

BATCH = 100
"""Maximum number of parameters, and of metrics, of a request; servers refuse more parameters."""
STATUS = {"done": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MLflow(Logger):
    """A run of the experiment `MLFLOW_EXPERIMENT_NAME`, by default the job's name."""

    def __init__(self) -> None:
        self._run: str | None = None

    def start(self, facts: Facts, config: Mapping[str, Any]) -> str:
        """Create the run with the configuration as parameters, which MLflow never changes, or go on with it."""
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # The caller repeats what fails.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(), Metric
        self._run = run = self._run or facts.known or self._created(facts)
        self._client.update_run(run, status="RUNNING")
        if not self._client.get_run(run).data.params:
            parameters = [Param(_plain(key), str(value)) for key, value in config.items()]
            for first in range(0, len(parameters), BATCH):
                self._client.log_batch(run, params=parameters[first : first + BATCH])
        return run

    def _created(self, facts: Facts) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", facts.project)
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        return str(self._client.create_run(number, run_name=facts.name).info.run_id)

    def line(self, split: str, step: int, time_s: float, metrics: Mapping[str, float]) -> None:
        """Send the metrics."""
        at = round((time_s or time.time()) * 1000)
        values = [self._metric(_plain(f"{split}/{name}"), value, at, step) for name, value in metrics.items()]
        for first in range(0, len(values), BATCH):
            self._client.log_batch(self._run, metrics=values[first : first + BATCH])

    def artefact(self, path: Path, name: str) -> None:
        """Upload a file, over an earlier one."""
        self._client.log_artifact(self._run, str(path))

    def end(self, status: str, summary: Mapping[str, float]) -> None:
        """Send the summary and the status."""
        super().end(status, summary)
        self._client.set_terminated(self._run, STATUS[status])


def _plain(name: str) -> str:
    """Return a name without the characters that MLflow refuses."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"), flags=re.ASCII)
