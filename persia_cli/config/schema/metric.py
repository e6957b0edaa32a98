"""The figures that models are compared by: their keys in `metrics.jsonl`, and the direction in which they improve."""

from collections.abc import Sequence
from typing import Literal

Aim = Literal["high", "low", "one"]
"""The better values of a figure: high ones, low ones, or those close to 1."""

AIMS: dict[str, Aim] = {
    "auc": "high",
    "gauc": "high",
    "pr_auc": "high",
    "accuracy": "high",
    "log_loss": "low",
    "ne": "low",
    "calibration": "one",
}
"""Every figure that each label has; `gauc` only with `dataset.group_by`."""


def keys_of(figure: str, labels: Sequence[str]) -> list[str]:
    """Return the key of a figure for each label; with several labels it ends in the label's name."""
    return [figure] if len(labels) == 1 else [f"{figure}_{label}" for label in labels]


def metrics_of(labels: Sequence[str], queries: bool) -> dict[str, Aim]:
    """Return every metric of an evaluation, and its aim; `queries` is True if samples have query ids."""
    figures = {figure: aim for figure, aim in AIMS.items() if queries or figure != "gauc"}
    return {key: aim for figure, aim in figures.items() for key in keys_of(figure, labels)} | {"loss": "low"}


def aim_of(metric: str) -> Aim:
    """Return the better values of a metric, by its key, which may end in a label's name."""
    return next((aim for figure, aim in AIMS.items() if metric == figure or metric.startswith(f"{figure}_")), "low")


def goodness(aim: Aim, value: float) -> float:
    """Return a number that is higher for better values."""
    return {"high": value, "low": -value, "one": -abs(value - 1.0)}[aim]
