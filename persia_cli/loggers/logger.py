"""The four calls of a logger, and what it is given."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

LOGGERS = "loggers"
"""Folder of a run directory with the state of each logger, and the files of those that write some."""
TENSORBOARD = "tensorboard"
"""Folder of TensorBoard's files in a run directory."""
WANDB = f"{LOGGERS}/wandb"
"""Folder of W&B's files in a run directory; its links lead out of it."""
KINDS = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "WandB", "trackio": "Trackio",
         "prometheus": "Prometheus"}  # fmt: skip
"""Module and class of each logger."""
NO_METRICS = ("time", "step", "split")


class Facts(NamedTuple):
    """A run: the job's name, the name of the run directory, the folder of loggers in it, and the labels' names.

    `known` is the id that an earlier start of the run has returned, and `step` the last step that the tracker has.
    """

    project: str
    name: str
    folder: Path
    known: str | None
    step: int
    labels: tuple[str, ...]


class Logger:
    """A tracker of experiments. A call that raises is repeated later with the same arguments, `artefact` excepted."""

    def start(self, facts: Facts, config: Mapping[str, Any]) -> str:
        """Begin the run, or go on with the known one; return its id. Only this imports the tracker's library."""
        raise NotImplementedError

    def line(self, split: str, step: int, time_s: float, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a line that was written at `time_s`, seconds since 1970."""
        raise NotImplementedError

    def artefact(self, path: Path, name: str) -> None:
        """Attach a file, if the tracker has a place for files."""

    def end(self, status: str, summary: Mapping[str, float]) -> None:
        """End the run, which is `done`, `failed` or `stopped`, once the tracker has everything."""
        self.line("summary", round(summary.get("steps", 0)), 0.0, summary)


def logger_of(name: str) -> Logger:
    """Return the logger of a name."""
    logger: Logger = getattr(import_module(f"persia_cli.loggers.{name}"), KINDS[name])()
    return logger


def metrics_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of metrics; those that are undefined are left out."""
    return {key: float(value) for key, value in line.items() if type(value) in (int, float) and key not in NO_METRICS}


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested settings as one level, such as `optimizer.dense.lr`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) and value else {f"{before}{key}": value}
    return found
