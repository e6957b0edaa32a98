"""The few figures that a run is known by, as words."""

from persia_cli.observe.history import RunHistory
from persia_cli.observe.outcome import figures_of

QUALITY = {
    "auc": "AUC",
    "gauc": "GAUC",
    "pr_auc": "PR-AUC",
    "accuracy": "accuracy",
    "log_loss": "log loss",
    "ne": "NE",
    "calibration": "calibration",
}
"""Figures of an evaluation, and what they are called in a table."""


def key_figures(history: RunHistory) -> dict[str, str]:
    """Return what the last evaluation (without one, training so far) found, and how fast and stale training was."""
    figures: dict[str, str] = {}
    judged = (history.evaluations or history.training)[-1:]
    for line in judged:
        for label in history.labels:
            for key in ("auc", "log_loss", "calibration"):
                value = history.figure(line, key, label)
                name = QUALITY[key] if len(history.labels) == 1 else f"{QUALITY[key]}, {label}"
                figures[name] = "-" if value is None else f"{value:.4f}"
    best = history.last_event("best")
    if best is not None:
        figures[f"best {best['metric']}"] = f"{best['value']:.4f} at step {best['step']:,}"
    whole = figures_of(history.training)
    if whole is not None:
        last = history.training[-1]
        rate = whole.samples_per_s
        figures["steps"] = f"{last['step']:,}"
        figures["samples"] = f"{last['samples']:,}"
        figures["samples/s"] = "-" if rate is None else f"{rate:,.0f}"
        figures["max staleness"] = str(whole.staleness_max)
        figures["rows"] = f"{history.lines[-1]['rows']:,}"
    return figures
