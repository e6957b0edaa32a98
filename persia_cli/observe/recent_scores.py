"""The scores of the last lines of training; the oldest are dropped."""

from collections import deque
from collections.abc import Mapping
from typing import Self

from persia_cli.observe.scores import IN_TRAINING, ScoreHistogram
from persia_cli.wire.job_messages import ScoreCounts

WINDOW = 10
"""Lines of training that the `window_` metrics cover."""


class RecentScores:
    """The scores of the last intervals, at most `intervals` of them."""

    def __init__(self, tasks: int, intervals: int) -> None:
        """Begin without any scores."""
        self._tasks = tasks
        self._lines: deque[ScoreHistogram] = deque(maxlen=intervals)

    def encode(self) -> dict[str, ScoreCounts]:
        """Return all histograms by name; `restored` continues with equal bits."""
        return {f"recent.{i}": each.encode() for i, each in enumerate(self._lines)}

    @classmethod
    def restored(cls, tasks: int, intervals: int, encoded: Mapping[str, ScoreCounts]) -> Self:
        """Return the scores of as many intervals that were encoded; raises WireError or KeyError for invalid ones."""
        made = cls(tasks, intervals)
        for i in range(len(encoded)):
            made.add(ScoreHistogram.decode(tasks, encoded[f"recent.{i}"], IN_TRAINING))
        return made

    def add(self, scores: ScoreHistogram) -> None:
        """Add the scores of an interval; over the limit, drop those of the oldest interval."""
        self._lines.append(scores)

    def together(self) -> ScoreHistogram:
        """Return the scores of all these intervals."""
        whole = ScoreHistogram(self._tasks, limit=IN_TRAINING)
        for each in self._lines:
            whole.merge(each)
        return whole
