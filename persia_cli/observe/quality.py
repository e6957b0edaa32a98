"""The figures of quality in a line of metrics: those that each label has, by its kind of predictions."""

from collections.abc import Callable, Mapping
from functools import partial

from persia_cli.config.schema import Link
from persia_cli.config.schema.metric import FIGURES, keys_of
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
"""Key in a line of metrics -> figure of the scores of a task."""


def quality(links: Mapping[str, Link], scores: ScoreHistogram) -> dict[str, float | None]:
    """Return all figures of scores by their keys; `links` has what predicts each label, in the order of tasks."""
    return {
        key: value
        for name, figure in QUALITY.items()
        for key, value in by_label(links, name, partial(figure, scores)).items()
    }


def by_label(
    links: Mapping[str, Link], figure: str, value_of: Callable[[int], float | None]
) -> dict[str, float | None]:
    """Return a figure of each task that has it, by its key, which includes the label if there are several."""
    keys = keys_of(figure, list(links))
    return {keys[task]: value_of(task) for task, link in enumerate(links.values()) if figure in FIGURES[link]}
