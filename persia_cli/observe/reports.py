"""The merged reports of all ranks, of one interval or of one evaluation in several intervals."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from persia_cli.observe.figures import IntervalFigures
from persia_cli.observe.query_scores import QueryScores
from persia_cli.observe.scores import ENCODED, MOST, ScoreHistogram

Array = np.ndarray[Any, Any]
RankReport = tuple[IntervalFigures, list[Array]]
"""Figures of an interval of one rank, and its arrays: the score histogram, then the scores of single samples."""


def merged_scores(reports: Sequence[RankReport], tasks: int, most: int = MOST) -> ScoreHistogram:
    """Return the scores of all ranks, merged in the order of ranks; `most` is that of ScoreHistogram."""
    scores = ScoreHistogram(tasks, most)
    for _, arrays in reports:
        scores.merge_encoded(*arrays[:ENCODED])
    return scores


class EvaluationReports:
    """The reports of one evaluation, merged in the order of its intervals."""

    def __init__(self, tasks: int) -> None:
        self.intervals: list[IntervalFigures] = []
        self.seconds = 0.0
        """Duration by the slowest rank of each interval."""
        self.scores = ScoreHistogram(tasks)
        self.by_query = QueryScores(tasks)

    def add(self, reports: Sequence[RankReport]) -> bool:
        """Add the reports of all ranks of one interval; returns True if it was the last."""
        self.intervals += [figures for figures, _ in reports]
        self.seconds += max(figures.seconds for figures, _ in reports)
        self.scores.merge(merged_scores(reports, self.scores.tasks))
        for _, arrays in reports:
            self.by_query.merge_encoded(*arrays[ENCODED:])
        return not reports[0][0].more
