"""The curves of a run's page: which metrics share a chart, their names, and the order and groups of charts."""

from dataclasses import dataclass
from typing import Any

from persia_cli.metric import AIMS, aim_of
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


GROUPS = {
    "": (
        Panel("AUC", "AUC", {"auc": ""}),
        Panel("Root mean squared error", "RMSE", {"rmse": ""}),
        Panel("Recall of the first items", "recall", {"recall@K": ""}),
        Panel("Loss", "loss", {"loss": ""}),
        Panel("Training speed", "samples/s", {"samples_per_s": ""}, over_time=True, from_zero=True),
    ),
    "Quality": (
        Panel("Log loss", "nats", {"log_loss": ""}),
        Panel("Calibration", "predictions / labels", {"calibration": ""}, ideal=1.0),
        Panel("Reliability", "fraction of positives", {}),
        Panel("Average precision", "PR-AUC", {"pr_auc": ""}),
        Panel("Accuracy", "fraction", {"accuracy": ""}),
        Panel("Normalized entropy", "NE", {"ne": ""}),
        Panel("AUC within queries", "GAUC", {"gauc": ""}),
        Panel("Mean absolute error", "MAE", {"mae": ""}),
        Panel("Explained variance", "R²", {"r2": ""}),
        Panel("Discounted gain of the first items", "NDCG", {"ndcg@K": ""}),
        Panel("Queries with a relevant item among the first", "fraction", {"hr@K": ""}),
        Panel("Mean reciprocal rank", "MRR", {"mrr": ""}),
        Panel("AUC of portions, decayed mean", "AUC", {"decayed_auc": ""}),
        Panel("Loss of portions, decayed mean", "loss", {"decayed_loss": ""}),
        Panel("Normalized entropy of portions, decayed mean", "NE", {"decayed_ne": ""}),
        Panel("Calibration of portions, decayed mean", "predictions / labels", {"decayed_calibration": ""}, ideal=1.0),
    ),
    "Embedding tables": (
        Panel(
            "Rows", "rows", {"rows": "in memory", "cold_rows": "on disks", "evicted": "evicted so far"}, from_zero=True
        ),
        Panel(
            "Ids with a row",
            "fraction",
            {"hit_rate": "distinct ids of a batch", "look_up_hit_rate": "all look-ups"},
        ),
        Panel("Ids without a row in evaluations", "fraction", {"unknown": ""}, from_zero=True),
        Panel("Staleness of rows", "% of steps", {}),
        Panel("Staleness over time", "steps", {"staleness_mean": "mean", "staleness_max": "greatest"}, from_zero=True),
        Panel("Rows found in memory and on disks", "fraction", {"memory_hit_rate": "memory", "cold_hit_rate": "disks"}),
        Panel("Wait for disks", "ms per step", {"cold_wait_ms": ""}, from_zero=True),
        Panel("Reads from disks", "rows/s", {"cold_reads_per_s": ""}, from_zero=True),
        Panel("Writes to disks", "bytes so far", {"cold_written": ""}, from_zero=True),
        Panel("Rows lost", "rows so far", {"cold_dropped": ""}, from_zero=True),
    ),
    "Machine and data": (
        Panel("GPU memory", "bytes", {"gpu_memory": ""}, from_zero=True),
        Panel("Behind the data", "s", {"behind_s": "oldest file", "behind_data_s": "newest sample"}, from_zero=True),
        Panel("Versions held back by the guard", "0 or 1", {"versions_held": ""}, from_zero=True),
        Panel("Unreadable rows of the data", "rows so far", {"bad_rows": ""}, from_zero=True),
    ),
}
"""All charts, in their order, by the title of their group; those of the first group are large."""

SCORED = {key for key, metric in METRIC_KEYS.items() if key in ("loss", *AIMS) or metric.lines == "eval"}
"""Keys that lines of evaluations have curves of."""


UNMARKED = {"calibration", "decayed_calibration", "eval_samples", "unknown"}
MARKED = {key: aim_of(key.removeprefix("decayed_").replace("K", "1")) for key in SCORED - UNMARKED}
"""Keys whose best evaluation is marked, and whether it is the highest or the lowest."""


def panels() -> dict[str, Any]:
    """Return what a page needs to draw metrics."""
    return {
        "groups": GROUPS,
        "scored": sorted(SCORED),
        "marked": MARKED,
        "meanings": {key: metric.meaning.replace("`", "") for key, metric in METRIC_KEYS.items()},
    }
