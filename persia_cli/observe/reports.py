"""What the ranks report of one interval, or of one evaluation in several intervals, taken together."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from persia_cli.observe.figures import IntervalFigures
from persia_cli.observe.grouped import GroupedScores
from persia_cli.observe.scores import ScoreHistogram

Array = np.ndarray[Any, Any]
Report = tuple[IntervalFigures, list[Array]]
"""Figures of an interval of one rank, and its arrays: two of the histogram of scores, four of the scores in groups."""

SCORES = 2
"""Arrays of a report that are of the histogram."""


def merged_scores(reports: Sequence[Report], tasks: int) -> ScoreHistogram:
    """Return the scores of all ranks, merged in the order of ranks."""
    scores = ScoreHistogram(tasks)
    for _, arrays in reports:
        scores.merge_encoded(*arrays[:SCORES])
    return scores


class Evaluation:
    """One evaluation, gathered in the order of its intervals."""

    def __init__(self, tasks: int) -> None:
        self.intervals: list[IntervalFigures] = []
        self.scores = ScoreHistogram(tasks)
        self.grouped = GroupedScores(tasks)

    def add(self, reports: Sequence[Report]) -> bool:
        """Take the reports of all ranks of one interval; True if it was the last."""
        self.intervals += [figures for figures, _ in reports]
        self.scores.merge(merged_scores(reports, self.scores.tasks))
        for _, arrays in reports:
            self.grouped.merge_encoded(*arrays[SCORES:])
        return not reports[0][0].more
