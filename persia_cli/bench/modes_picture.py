"""The picture of `persia bench modes`: samples per second of every mode over every link."""

from collections.abc import Mapping
from pathlib import Path

from persia_cli.bench.delay_line import NetworkLink
from persia_cli.bench.result import Result
from persia_cli.observe.drawing import INK, MODE_COLOURS, SMALL, dress, empty_figure, plain, save_picture, thousands

WIDTH = 0.27
"""Of a bar, where the bars of a link share 1."""


def draw_modes(path: Path, results: Mapping[NetworkLink, Result], title: str) -> None:
    """Write bars of the medians, with lines from the least to the most of the rounds; raises DiskError."""
    figure = empty_figure(2.0 + 1.6 * len(results), 4.2)
    axes = figure.add_subplot()
    modes = list(dict.fromkeys(side.name for result in results.values() for side in result.sides))
    for number, mode in enumerate(modes):
        sides = [side for result in results.values() for side in result.sides if side.name == mode]
        middles = [place + (number - (len(modes) - 1) / 2) * WIDTH for place in range(len(results))]
        medians = [side.median for side in sides]
        apart = [[side.median - side.least for side in sides], [side.most - side.median for side in sides]]
        bars = axes.bar(
            middles, medians, WIDTH, yerr=apart, color=MODE_COLOURS.get(mode, INK), label=mode,
            error_kw={"elinewidth": 1.0, "ecolor": INK},
        )  # fmt: skip
        axes.bar_label(bars, [f"{median:,.0f}" for median in medians], fontsize=7.5, color=INK, padding=2)
    dress(axes, "bandwidth and one-way delay of the link of each host", "samples/s")
    axes.grid(visible=False, axis="x")
    axes.set_xticks(range(len(results)), [in_words(link) for link in results])
    thousands(axes.yaxis)
    axes.set_title(plain(title), **SMALL)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    save_picture(figure, path)


def in_words(link: NetworkLink) -> str:
    """Return a link in two lines: its bandwidth, and its delay."""
    limit = f"{link.mbit_per_s:g} Mbit/s" if link.is_limited else "no limit"
    return f"{limit}\n{link.delay_ms:g} ms"
