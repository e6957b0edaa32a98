"""How all pictures look: an empty figure, dressed axes, a file that appears whole or not at all."""

import re
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persia_cli.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID = "#333333", "#dddddd"
DPI = 150
MISSING = "there is no picture, for it needs matplotlib: pip install matplotlib"

SMALL: dict[str, Any] = {"loc": "left", "fontsize": 9.5, "color": INK}
"""The title of axes."""


def empty_figure(width: float, height: float) -> "Figure":
    """Return a figure of so many inches; raises UserError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(MISSING) from error
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")


def plain(text: str) -> str:
    """Return text that matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")


def save_png(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG."""
    part = path.with_name(f"{path.name}.part")
    figure.savefig(part, format="png")
    part.replace(path)


def to_svg(figure: "Figure") -> str:
    """Return a figure as an SVG element for a page: text stays text, and nothing refers to anything outside."""
    from matplotlib import rc_context

    drawn = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "persia"}):
        figure.savefig(drawn, format="svg")
    text = drawn.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def dress(axes: "Axes", x: str, y: str) -> None:
    """Label the axes and leave of their lines what is needed."""
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    axes.ticklabel_format(axis="y", useOffset=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def thousands(axis: Any) -> None:
    """Write the numbers of an axis with commas, and few of them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
