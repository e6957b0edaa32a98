"""The staleness of rows: a sparse histogram {staleness: steps}, and its presentation."""

from collections.abc import Mapping, Sequence

Histogram = dict[int, int]
"""Number of steps by the staleness of their rows; a staleness without steps has no entry."""

EXACT = 8
"""Maximum number of staleness values that are shown one by one; more are shown in ranges that double."""
SPARKS, NONE = "▁▂▃▄▅▆▇█", "·"


def merged(histograms: Sequence[Mapping[int, int]]) -> Histogram:
    """Return the sum of the histograms of several ranks or intervals, by ascending staleness."""
    values = sorted({value for histogram in histograms for value in histogram})
    return {value: sum(histogram.get(value, 0) for histogram in histograms) for value in values}


def mean(histogram: Mapping[int, int]) -> float:
    """Return the mean staleness of a step; 0 without steps."""
    return sum(value * steps for value, steps in histogram.items()) / max(sum(histogram.values()), 1)


def ranges(histogram: Mapping[int, int]) -> Histogram:
    """Return the histogram; if it has many values, by the upper ends of ranges 1, 2, 3-4, 5-8, 9-16, …"""
    if len(histogram) <= EXACT:
        return dict(sorted(histogram.items()))
    ends: Histogram = {}
    for value, steps in sorted(histogram.items()):
        end = 1 << max(value - 1, 0).bit_length()
        ends[end] = ends.get(end, 0) + steps
    return ends


def in_sparks(histogram: Mapping[int, int]) -> str:
    """Return one bar for each staleness from 1 to the greatest, or for each of the `ranges`; the tallest is full."""
    shown = ranges(histogram)
    if len(histogram) <= EXACT and max(shown, default=0) <= EXACT:
        shown = {value: shown.get(value, 0) for value in range(1, max(shown, default=0) + 1)}
    tallest = max(shown.values(), default=0) or 1
    return "".join(SPARKS[steps * (len(SPARKS) - 1) // tallest] if steps else NONE for steps in shown.values())
