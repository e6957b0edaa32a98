"""The report of a run as one picture: its key figures above all panels."""

from pathlib import Path

from persia_cli.observe.drawing import INK, SMALL, empty_figure, plain, save_png
from persia_cli.observe.history import RunHistory
from persia_cli.observe.key_figures import key_figures
from persia_cli.observe.panels import PANELS

COLUMNS = 2
WIDTH, HEIGHT = 6.4, 3.5
"""Inches of a panel."""
FIGURES_A_LINE = 6


def report_picture(history: RunHistory, path: Path, now: float) -> None:
    """Write the picture as PNG; `now` is in seconds since 1970. Raises UserError if matplotlib is not installed."""
    panels = [panel for panel in PANELS if panel.has(history)]
    rows = max(-(-len(panels) // COLUMNS), 1)
    figure = empty_figure(COLUMNS * WIDTH, rows * HEIGHT + 1.0)
    cells = figure.add_gridspec(rows, COLUMNS)
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(cells[divmod(number, COLUMNS)])
        panel.draw(history, axes)
        axes.set_title(panel.title, **SMALL)
    figure.suptitle(_heading(history, now), x=0.01, ha="left", fontsize=11, color=INK)
    save_png(figure, path)


def _heading(history: RunHistory, now: float) -> str:
    outcome = history.outcome(now)
    words = [f"{name} {value}" for name, value in key_figures(history).items()]
    lines = [": ".join(word for word in (history.run.name, outcome.state, *outcome.text.splitlines()[:1]) if word)]
    lines += ["   ".join(words[first : first + FIGURES_A_LINE]) for first in range(0, len(words), FIGURES_A_LINE)]
    return plain("\n".join(lines))
