"""The curves of a run's page: which metrics share a chart, their names, and the order of charts."""

from dataclasses import dataclass
from typing import Any

from persia_cli.metric import AIMS
from persia_cli.observe.journal_keys import METRIC_KEYS


@dataclass(frozen=True)
class Panel:
    """A chart of metrics over steps."""

    title: str
    y: str
    """The label of its y-axis."""
    curves: dict[str, str]
    """Name of each curve by the key of `METRIC_KEYS`; empty if the title suffices. A chart without curves gets its
    numbers from the details of a run."""
    over_time: bool = False
    """True: over seconds since training began."""
    from_zero: bool = False
    """True: the y-axis begins at 0."""
    ideal: float | None = None
    """The value that is best, as a line."""
    is_main: bool = True
    """False: it is shown on request only."""


PANELS = (
    Panel("Loss", "loss", {"loss": ""}),
    Panel("AUC", "AUC", {"auc": ""}),
    Panel("Root mean squared error", "RMSE", {"rmse": ""}),
    Panel("Explained variance", "R²", {"r2": ""}),
    Panel("Recall of the first items", "recall", {"recall@K": ""}),
    Panel("Calibration", "predictions / labels", {"calibration": ""}, ideal=1.0),
    Panel("Training speed", "samples/s", {"samples_per_s": ""}, over_time=True, from_zero=True),
    Panel("Staleness of rows", "% of steps", {}),
    Panel(
        "Rows", "rows", {"rows": "in memory", "cold_rows": "on disks", "evicted": "evicted so far"}, from_zero=True
    ),
    Panel(
        "Hit rate of look-ups",
        "fraction with a row",
        {"hit_rate": "distinct ids of a batch", "look_up_hit_rate": "all look-ups"},
    ),
    Panel(
        "Rows found in memory and on disks", "fraction of ids", {"memory_hit_rate": "memory", "cold_hit_rate": "disks"}
    ),
    Panel("Wait for disks", "ms per step", {"cold_wait_ms": ""}, from_zero=True),
    Panel("Reliability", "fraction of positives", {}),
    Panel("Log loss", "nats", {"log_loss": ""}, is_main=False),
    Panel("Normalized entropy", "NE", {"ne": ""}, is_main=False),
    Panel("Average precision", "PR-AUC", {"pr_auc": ""}, is_main=False),
    Panel("Accuracy", "fraction", {"accuracy": ""}, is_main=False),
    Panel("AUC within queries", "GAUC", {"gauc": ""}, is_main=False),
    Panel("Mean absolute error", "MAE", {"mae": ""}, is_main=False),
    Panel("Discounted gain of the first items", "NDCG", {"ndcg@K": ""}, is_main=False),
    Panel("Queries with a relevant item among the first", "fraction", {"hr@K": ""}, is_main=False),
    Panel("Mean reciprocal rank", "MRR", {"mrr": ""}, is_main=False),
    Panel("Ids without a row", "fraction of look-ups", {"unknown": ""}, is_main=False),
    Panel("Staleness over time", "steps", {"staleness_mean": "mean", "staleness_max": "greatest"}, is_main=False),
    Panel("GPU memory", "bytes", {"gpu_memory": ""}, from_zero=True, is_main=False),
    Panel("Reads from disks", "rows/s", {"cold_reads_per_s": ""}, from_zero=True, is_main=False),
    Panel("Writes to disks", "bytes so far", {"cold_written": ""}, from_zero=True, is_main=False),
    Panel("Rows lost", "rows so far", {"cold_dropped": ""}, from_zero=True, is_main=False),
    Panel("Unreadable rows of the data", "rows so far", {"bad_rows": ""}, from_zero=True, is_main=False),
)  # fmt: skip
"""All charts, in their order."""

SCORED = {key for key, metric in METRIC_KEYS.items() if key in ("loss", *AIMS) or metric.lines == "eval"}
"""Keys that lines of evaluations have curves of."""


def panels() -> dict[str, Any]:
    """Return what a page needs to draw metrics."""
    return {
        "panels": PANELS,
        "scored": sorted(SCORED),
        "meanings": {key: metric.meaning.replace("`", "") for key, metric in METRIC_KEYS.items()},
    }
