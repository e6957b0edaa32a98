"""The most important figures of a run, as text."""

from persia_cli.observe.history import RunHistory
from persia_cli.observe.outcome import speed_of

QUALITY = {
    "auc": "AUC",
    "gauc": "GAUC",
    "pr_auc": "PR-AUC",
    "accuracy": "accuracy",
    "log_loss": "log loss",
    "ne": "NE",
    "calibration": "calibration",
}
"""Figures of an evaluation, and their names in a table."""


def key_figures(history: RunHistory) -> dict[str, str]:
    """Return the figures of the evaluation that counts for a run, and speed and staleness of its training.

    Without an evaluation, they are those of training so far.
    """
    figures: dict[str, str] = {}
    judged = history.judged
    of = "" if judged else " in training"
    for line in [judged] if judged else history.training[-1:]:
        for label in history.labels:
            for key in ("auc", "log_loss", "calibration"):
                value = history.figure(line, key, label)
                name = QUALITY[key] if len(history.labels) == 1 else f"{QUALITY[key]}, {label}"
                figures[name + of] = "-" if value is None else f"{value:.4f}"
    if judged:
        figures["evaluated at step"] = f"{judged['step']:,}"
    best = history.last_event("best")
    if best is not None:
        figures[f"best {best['metric']}"] = f"{best['value']:.4f} at step {best['step']:,}"
    if history.training:
        last = history.training[-1]
        rate = speed_of(history.training)
        figures["steps"] = f"{last['step']:,}"
        figures["samples"] = f"{last['samples']:,}"
        figures["samples/s"] = "-" if rate is None else f"{rate:,.0f}"
        figures["max staleness"] = str(max(line["staleness_max"] for line in history.training))
        figures["rows"] = f"{history.lines[-1]['rows']:,}"
    return figures
