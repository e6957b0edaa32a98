"""The table of a comparison, in Markdown: one line for each network."""

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from scripts.rival.record import Comparison, JobMetrics

HEAD = "| network | seeds | AUC of Persia | of FuxiCTR | difference | log loss | epochs | samples/s | ratio |"
RULE = "|---" * HEAD.count(" |") + "|"


def line_of(rounds: Sequence[Comparison]) -> str:
    """Return the line of a network; `rounds` has a comparison for each seed.

    AUC is the mean ± the standard deviation of seeds; the difference has the standard error of a difference of two
    means. The ratio is the median of ours to theirs, each of the same turn.
    """
    ours, theirs = ([each.sides[side] for each in rounds] for side in ("persia", "fuxictr"))
    aucs = [[figures["auc"] for figures in side] for side in (ours, theirs)]
    difference = f"{fmean(aucs[0]) - fmean(aucs[1]):+.4f}"
    if len(rounds) > 1:
        difference += f" ± {math.hypot(*map(stdev, aucs)) / math.sqrt(len(rounds)):.4f}"
    ratio = median(p["samples_per_s"] / f["samples_per_s"] for p, f in zip(ours, theirs, strict=True))
    cells = [rounds[0].settings.network, str(len(rounds)), *map(_spread, aucs), difference]
    cells += [_both(ours, theirs, "log_loss", ".4f"), _both(ours, theirs, "epochs", ".1f")]
    cells += [_both(ours, theirs, "samples_per_s", ",.0f"), f"{ratio:.2f}"]
    return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def _both(ours: Sequence[JobMetrics], theirs: Sequence[JobMetrics], name: str, style: str) -> str:
    return " / ".join(f"{fmean(figures[name] for figures in side):{style}}" for side in (ours, theirs))
