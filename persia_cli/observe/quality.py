"""The quality metrics in a line of metrics: those of each label, by its kind of predictions."""

from collections.abc import Callable, Mapping
from functools import partial

from persia_cli.metric import FIGURES, Link, keys_of
from persia_cli.observe.scores import ScoreHistogram

QUALITY = {
    "auc": ScoreHistogram.auc,
    "log_loss": ScoreHistogram.log_loss,
    "ne": ScoreHistogram.normalized_entropy,
    "calibration": ScoreHistogram.calibration,
    "pr_auc": ScoreHistogram.average_precision,
    "accuracy": ScoreHistogram.accuracy,
    "rmse": ScoreHistogram.root_mean_squared_error,
    "mae": ScoreHistogram.mean_absolute_error,
    "r2": ScoreHistogram.r2,
}
"""Key in a line of metrics -> metric of the scores of a task."""


def quality(links: Mapping[str, Link], scores: ScoreHistogram) -> dict[str, float | None]:
    """Return all metrics of scores by their keys; `links` has the link of each label, in the order of tasks."""
    return {
        key: value
        for name, metric in QUALITY.items()
        for key, value in by_label(links, name, partial(metric, scores)).items()
    }


def by_label(
    links: Mapping[str, Link], metric: str, value_of: Callable[[int], float | None]
) -> dict[str, float | None]:
    """Return a metric of each task that has it, by its key, which includes the label if there are several."""
    keys = keys_of(metric, list(links))
    return {keys[task]: value_of(task) for task, link in enumerate(links.values()) if metric in FIGURES[link]}
