"""The scores of the last lines of training; the oldest are dropped."""

from collections.abc import Mapping
from typing import Self

from persia_cli.observe.scores import IN_TRAINING, ScoreHistogram
from persia_cli.wire.job_messages import ScoreCounts

WINDOW = 10
"""Lines of training that the `window_` metrics cover."""


class RecentScores:
    """The scores of the last intervals, at most `intervals` of them."""

    # Merged scores cannot be removed again. So this is a queue of two stacks: one histogram of all newer intervals, and
    # for each older interval a histogram from it up to the newest of the older ones. Dropping the oldest interval drops
    # its histogram. When no older intervals are left, the newer ones become the older ones. This takes about two merges
    # for each interval, and one more for each call of `together`.

    def __init__(self, tasks: int, intervals: int) -> None:
        """Begin without any scores."""
        self._tasks, self._intervals = tasks, intervals
        self._older: list[ScoreHistogram] = []
        """Histograms from each older interval up to the newest of them; the last one begins at the oldest."""
        self._newer: list[ScoreHistogram] = []
        """Histograms of the newer intervals."""
        self._newer_together = self._merged()

    def encode(self) -> dict[str, ScoreCounts]:
        """Return all histograms by name; `restored` continues with equal bits."""
        stacks = {"older": self._older, "newer": self._newer, "together": [self._newer_together]}
        return {f"{name}.{i}": each.encode() for name, stack in stacks.items() for i, each in enumerate(stack)}

    @classmethod
    def restored(cls, tasks: int, intervals: int, encoded: Mapping[str, ScoreCounts]) -> Self:
        """Return the scores of as many intervals that were encoded; raises WireError or KeyError for invalid ones."""
        made = cls(tasks, intervals)

        def stack(name: str) -> list[ScoreHistogram]:
            count = sum(key.startswith(f"{name}.") for key in encoded)
            return [ScoreHistogram.decode(tasks, encoded[f"{name}.{i}"], IN_TRAINING) for i in range(count)]

        made._older, made._newer, [made._newer_together] = stack("older"), stack("newer"), stack("together")
        return made

    def add(self, scores: ScoreHistogram) -> None:
        """Add the scores of an interval; over the limit, drop those of the oldest interval."""
        self._newer.append(scores)
        if len(self._newer) + len(self._older) <= self._intervals:
            self._newer_together.merge(scores)
            return
        if self._older:
            self._newer_together.merge(scores)
        else:
            for each in reversed(self._newer):
                self._older.append(self._merged(*self._older[-1:], each))
            self._newer, self._newer_together = [], self._merged()
        self._older.pop()

    def together(self) -> ScoreHistogram:
        """Return the scores of all these intervals."""
        return self._merged(*self._older[-1:], self._newer_together)

    def _merged(self, *parts: ScoreHistogram) -> ScoreHistogram:
        whole = ScoreHistogram(self._tasks, limit=IN_TRAINING)
        for part in parts:
            whole.merge(part)
        return whole
