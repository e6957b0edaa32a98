"""The merged reports of ranks: of one interval, and of a whole evaluation."""

from collections.abc import Sequence
from typing import NamedTuple

from persia_cli.observe.query_scores import QueryScores
from persia_cli.observe.scores import EXACT, ScoreHistogram
from persia_cli.wire.job_messages import IntervalMetrics, ScoreCounts, ScoredSamples


class RankReport(NamedTuple):
    """The report of one rank on an interval."""

    metrics: IntervalMetrics
    scores: ScoreCounts
    samples: ScoredSamples | None


def merged_scores(reports: Sequence[RankReport], tasks: int, limit: int = EXACT) -> ScoreHistogram:
    """Return the scores of all ranks, merged in the order of ranks; `limit` is that of ScoreHistogram."""
    scores = ScoreHistogram(tasks, limit=limit)
    for report in reports:
        scores.merge_encoded(report.scores)
    return scores


class EvaluationReports:
    """The reports of one evaluation, merged in the order of its intervals."""

    def __init__(self, tasks: int) -> None:
        self.intervals: list[IntervalMetrics] = []
        self.seconds = 0.0
        """Duration by the slowest rank of each interval."""
        self.scores = ScoreHistogram(tasks)
        self.by_query = QueryScores(tasks)

    def add(self, reports: Sequence[RankReport]) -> bool:
        """Add the reports of all ranks of one interval; returns True if it was the last."""
        self.intervals += [report.metrics for report in reports]
        self.seconds += max(report.metrics.seconds for report in reports)
        self.scores.merge(merged_scores(reports, self.scores.tasks))
        for report in reports:
            self.by_query.merge_encoded(report.samples)
        return not reports[0].metrics.more
