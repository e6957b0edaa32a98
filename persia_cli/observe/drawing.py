"""The common style of pictures: figures, axes, and atomic files."""

import re
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persia_cli.disk import replacing, write_whole
from persia_cli.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID = "#333333", "#dddddd"
COLOURS = ("#1f6f8b", "#d1495b", "#8a5fbf", "#2a9d8f", "#c9822b", "#5b6770")
"""Colours of labels, in order; the first one also for panels with one line."""
MODE_COLOURS = {"sync": "#1f6f8b", "hybrid": "#d1495b", "async": "#8a5fbf"}
DPI = 150
MISSING = "pictures need matplotlib, which is not installed: pip install matplotlib"

SMALL: dict[str, Any] = {"loc": "left", "fontsize": 9.5, "color": INK}
"""Style of the titles of axes."""


def empty_figure(width: float, height: float) -> "Figure":
    """Return a figure of so many inches; raises UserError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(MISSING) from error
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")


def plain(text: str) -> str:
    """Return text in which matplotlib finds no formulas."""
    return text.replace("$", r"\$")


def save_png(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG, atomically; raises DiskError."""
    with replacing(path) as part:
        figure.savefig(part, format="png")


def to_svg(figure: "Figure") -> str:
    """Return a figure as an SVG element for a page, with text as text and without references to other files."""
    from matplotlib import rc_context

    drawn = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "persia"}):
        figure.savefig(drawn, format="svg")
    text = drawn.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def save_picture(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG or SVG, by the end of its name, atomically; raises DiskError."""
    if path.suffix == ".png":
        save_png(figure, path)
    else:
        write_whole(path, to_svg(figure))


def dress(axes: "Axes", x: str, y: str) -> None:
    """Label the axes and remove lines that are not needed."""
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    axes.ticklabel_format(axis="y", useOffset=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def thousands(axis: Any) -> None:
    """Format the numbers of an axis with commas, and show few of them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
