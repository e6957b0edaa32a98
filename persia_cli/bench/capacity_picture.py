"""The picture of `persia bench capacity`: speed and hit rate by size of the model."""

from pathlib import Path

from persia_cli.bench.capacity import CapacityResult
from persia_cli.bench.sizes import size_in_words
from persia_cli.observe.drawing import COLOURS, INK, SMALL, dress, empty_figure, plain, save_picture, thousands


def draw_capacity(path: Path, result: CapacityResult, machine: str) -> None:
    """Write medians of samples per second, with lines from the least to the most, and hit rates; raises DiskError."""
    figure = empty_figure(7.2, 5.2)
    speed, hits = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    x = [each.parameters for each in result.sizes]
    sides = [each.side for each in result.sizes]
    apart = [[side.median - side.least for side in sides], [side.most - side.median for side in sides]]
    speed.errorbar(
        x, [side.median for side in sides], yerr=apart, color=COLOURS[0], marker="o", elinewidth=1.0, ecolor=INK
    )
    for each in result.sizes:
        speed.annotate(
            f"{each.side.median:,.0f}", (each.parameters, each.side.most), (0, 5), textcoords="offset points",
            ha="center", fontsize=7.5, color=INK,
        )  # fmt: skip
    speed.set_xscale("log")
    dress(speed, "", "samples/s")
    thousands(speed.yaxis)
    speed.set_ylim(0, 1.25 * max(side.most for side in sides))
    speed.set_title(plain(f"dim {result.dim}, {result.budget / 2**20:,.0f} MiB for rows and index; {machine}"), **SMALL)
    hits.plot(x, [each.look_up_hit_rate for each in result.sizes], color=COLOURS[3], marker="o", label="look-ups hit")
    hits.plot(x, [each.side.auc or 0.0 for each in result.sizes], color=COLOURS[1], marker="o", label="AUC")
    hits.plot(x, [each.best_auc for each in result.sizes], color=COLOURS[1], ls=":", label="best possible AUC")
    dress(hits, "parameters (ids times dim)", "")
    hits.set_ylim(0.5, 1.02)
    hits.legend(frameon=False, fontsize=8, loc="lower right", ncols=3)
    hits.set_xticks(x, [size_in_words(each.parameters) for each in result.sizes])
    hits.minorticks_off()
    for axes in (speed, hits):
        axes.axvline(result.capacity * result.dim, color=INK, ls="--", linewidth=0.9)
    speed.annotate(
        "memory holds fewer rows than ids",
        (result.capacity * result.dim, 0),
        (4, 6),
        textcoords="offset points",
        fontsize=8,
        color=INK,
    )
    save_picture(figure, path)
