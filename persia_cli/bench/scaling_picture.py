"""The picture of `persia bench scaling`: speed-up by replicas of each role."""

from collections.abc import Sequence
from pathlib import Path

from persia_cli.bench.result import Result
from persia_cli.bench.scaling import SPEED_UP
from persia_cli.observe.drawing import COLOURS, INK, SMALL, dress, empty_figure, plain, save_picture


def draw_scaling(path: Path, results: Sequence[Result], title: str) -> None:
    """Write a line of speed-ups for each role, and that of linear ones; raises DiskError."""
    figure = empty_figure(6.4, 4.4)
    axes = figure.add_subplot()
    for result, colour in zip(results, COLOURS, strict=False):
        x = [int(side.name) for side in result.sides]
        axes.plot(x, [side.ratios[SPEED_UP] for side in result.sides], color=colour, marker="o", label=result.case)
        axes.set_xticks(x)
    axes.plot(x, x, color=INK, ls="--", linewidth=0.9, label="linear")
    dress(axes, "replicas of the role, one of each other", "speed-up")
    axes.set_ylim(bottom=0)
    axes.set_title(plain(title), **SMALL)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    save_picture(figure, path)
