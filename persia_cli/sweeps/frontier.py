"""The picture of a sweep: quality against speed, and both against staleness."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persia_cli.errors import count
from persia_cli.observe.drawing import INK, MODE_COLOURS, SMALL, dress, empty_figure, save_png, thousands
from persia_cli.sweeps.comparison import Mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROMISE = 0.001
"""Expected difference in AUC of hybrid mode to sync mode on large data, if staleness is small compared to the steps."""


@dataclass(frozen=True)
class Spot:
    """A setting in the picture."""

    label: str
    mode: str
    staleness: int | None
    """Staleness bound of a hybrid run; None for other modes."""
    samples_per_s: Mean
    quality: Mean
    difference: Mean | None
    """Paired difference in quality to the baseline; None for the baseline itself and without one."""


def draw(path: Path, spots: Sequence[Spot], title: str, baseline: str | None, metric: str) -> None:
    """Write the picture as PNG; raises UserError if matplotlib is not installed.

    Quality is measured by `metric`. If the spots have several staleness bounds, two more panels show quality and speed
    against staleness.
    """
    bounds = {spot.staleness for spot in spots if spot.staleness is not None}
    wide = len(bounds) > 1
    figure = empty_figure(13.0 if wide else 7.5, 5.6)
    if wide:
        cells = figure.add_gridspec(2, 2, width_ratios=[1.35, 1.0])
        frontier = figure.add_subplot(cells[:, 0])
        _against_staleness(figure.add_subplot(cells[0, 1]), figure.add_subplot(cells[1, 1]), spots, baseline, metric)
    else:
        frontier = figure.add_subplot()
    _frontier(frontier, spots, metric)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=INK)
    figure.draw_without_rendering()  # computes the sizes that are needed to place labels
    _label(frontier, spots)
    save_png(figure, path)


def _frontier(axes: "Axes", spots: Sequence[Spot], metric: str) -> None:
    """Draw quality over samples per second, with confidence intervals of both."""
    for mode in dict.fromkeys(spot.mode for spot in spots):
        ours = [spot for spot in spots if spot.mode == mode]
        axes.errorbar(
            [spot.samples_per_s.mean for spot in ours],
            [spot.quality.mean for spot in ours],
            xerr=[spot.samples_per_s.margin or 0.0 for spot in ours],
            yerr=[spot.quality.margin or 0.0 for spot in ours],
            fmt="o", markersize=7, capsize=3, linewidth=1.2, color=_colour(mode), label=mode,
        )  # fmt: skip
    dress(axes, "training speed (samples/s)", metric)
    axes.margins(0.16, 0.16)
    thousands(axes.xaxis)
    seeds = max(spot.quality.count for spot in spots)
    bars = f"; bars: 95 % confidence over {count(seeds, 'seed')}" if seeds > 1 else ""
    axes.set_title(f"quality and speed{bars}", **SMALL)
    if len({spot.mode for spot in spots}) > 1:
        # Outside, where its marks do not look like more settings.
        axes.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3)


def _against_staleness(upper: "Axes", lower: "Axes", spots: Sequence[Spot], baseline: str | None, metric: str) -> None:
    """Draw quality, as its difference to the baseline if there is one, and speed over the staleness bound."""
    hybrid = sorted((spot for spot in spots if spot.staleness is not None), key=lambda spot: spot.staleness or 0)
    gaps = [spot for spot in hybrid if spot.difference is not None]
    for points, value, axes in (
        (gaps, "difference", upper) if gaps else (hybrid, "quality", upper),
        (hybrid, "samples_per_s", lower),
    ):
        means: list[Mean] = [getattr(spot, value) for spot in points]
        axes.errorbar(
            [spot.staleness or 0 for spot in points],
            [mean.mean for mean in means],
            yerr=[mean.margin or 0.0 for mean in means],
            fmt="o-", markersize=5, capsize=3, linewidth=1.2, color=_colour("hybrid"),
        )  # fmt: skip
        axes.set_xscale("log", base=2)
        ticks = sorted({spot.staleness or 0 for spot in hybrid})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.margins(0.08, 0.15)
    dress(upper, "", f"{metric} less the baseline's" if gaps else metric)
    dress(lower, "staleness bound (steps)", "samples/s")
    thousands(lower.yaxis)
    if gaps:
        shaded = ""
        if metric == "auc":
            upper.axhspan(-PROMISE, PROMISE, color="#2a9d8f", alpha=0.12, linewidth=0)
            shaded = f"; shaded: ± {PROMISE:g}"
        upper.axhline(0.0, color=INK, linewidth=0.8)
        upper.set_title(f"paired difference to {baseline}{shaded}", **SMALL)
    else:
        upper.set_title("quality against staleness", **SMALL)
    lower.set_title("speed against staleness", **SMALL)
    _level(lower, [spot.samples_per_s.mean for spot in spots if spot.mode == "sync"])


def _level(axes: "Axes", sync: Sequence[float]) -> None:
    """Draw the speed of sync as a line, if there is one."""
    if len(sync) == 1:
        axes.axhline(sync[0], color=_colour("sync"), linewidth=1.0, linestyle="--")
        axes.annotate("sync", (1.0, sync[0]), xycoords=("axes fraction", "data"), xytext=(-4, 4),
                      textcoords="offset points", ha="right", fontsize=8, color=_colour("sync"))  # fmt: skip


PLACES = [
    (x, y, "left" if x > 0 else "right" if x < 0 else "center")
    for far in (0, 14, 28, 42, 56, 70, 90)
    for x, y in ((8 + far / 4, 5 + far), (8 + far / 4, -15 - far), (-8 - far / 4, 5 + far), (-8 - far / 4, -15 - far),
                 (0, 10 + far), (0, -20 - far))
]  # fmt: skip
"""Candidate offsets of a label in points, and the side of it that is placed there; the best first."""
NEAR = 24.0
"""Largest distance in points between a spot and a label without a line between them."""


def _label(axes: "Axes", spots: Sequence[Spot]) -> None:
    """Write each spot's label where it covers no other label, no spot and not the legend."""
    from matplotlib.transforms import Bbox

    def around(x: float, y: float, half: float) -> Any:
        return Bbox.from_bounds(x - half, y - half, 2 * half, 2 * half)

    pixels = axes.figure.dpi / 72
    middles = [axes.transData.transform((spot.samples_per_s.mean, spot.quality.mean)) for spot in spots]
    taken = [around(x, y, 6 * pixels) for x, y in middles]
    legend = axes.get_legend()
    if legend is not None:
        taken.append(legend.get_window_extent())
    for spot, (middle_x, middle_y) in zip(spots, middles, strict=True):
        note = axes.annotate(
            spot.label, (spot.samples_per_s.mean, spot.quality.mean), xytext=(0, 0), textcoords="offset points",
            fontsize=8.5, va="bottom", color=_colour(spot.mode),
        )  # fmt: skip
        size = note.get_window_extent()
        best = None
        for x, y, side in PLACES:
            left = middle_x + x * pixels - {"left": 0.0, "center": 0.5, "right": 1.0}[side] * size.width
            box = Bbox.from_bounds(left, middle_y + y * pixels, size.width, size.height + 2)
            outside = box.x0 < axes.bbox.x0 or box.x1 > axes.bbox.x1 or box.y0 < axes.bbox.y0 or box.y1 > axes.bbox.y1
            cost = sum(box.overlaps(other) for other in taken) + 2 * outside
            if best is None or cost < best[0]:
                best = cost, x, y, side, box
        assert best is not None
        _, x, y, side, box = best
        note.set(position=(x, y), horizontalalignment=side)
        taken.append(box)
        if abs(y) > NEAR:
            axes.annotate("", (spot.samples_per_s.mean, spot.quality.mean), xytext=(x, y), textcoords="offset points",
                          arrowprops={"arrowstyle": "-", "color": _colour(spot.mode), "linewidth": 0.6})  # fmt: skip


def _colour(mode: str) -> str:
    return MODE_COLOURS.get(mode, INK)
