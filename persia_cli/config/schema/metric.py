"""The figures that models are judged by: their keys in `metrics.jsonl`, and which values are better."""

from collections.abc import Sequence
from typing import Literal

Aim = Literal["high", "low", "one"]
"""Which values of a figure are better: high ones, low ones, or those close to 1."""

AIMS: dict[str, Aim] = {
    "auc": "high",
    "gauc": "high",
    "pr_auc": "high",
    "accuracy": "high",
    "log_loss": "low",
    "ne": "low",
    "calibration": "one",
}
"""Every figure that each label has; `gauc` only where samples are grouped."""


def keys_of(figure: str, labels: Sequence[str]) -> list[str]:
    """Return the key of a figure for each label; it bears the label's name where there are several."""
    return [figure] if len(labels) == 1 else [f"{figure}_{label}" for label in labels]


def metrics_of(labels: Sequence[str], grouped: bool) -> dict[str, Aim]:
    """Return every metric that an evaluation has, and its aim; `grouped` says whether samples are grouped."""
    figures = {figure: aim for figure, aim in AIMS.items() if grouped or figure != "gauc"}
    return {key: aim for figure, aim in figures.items() for key in keys_of(figure, labels)} | {"loss": "low"}
