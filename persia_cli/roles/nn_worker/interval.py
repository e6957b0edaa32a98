"""The sums of one rank between two lines of metrics, or of a portion of an evaluation."""

import queue
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from persia_cli.control.position import TRAIN
from persia_cli.metric import Link
from persia_cli.observe.scores import EXACT, IN_TRAINING, QueryScores, ScoreHistogram
from persia_cli.roles.nn_worker.pipeline import ReadyBatch
from persia_cli.roles.session import IntervalReport
from persia_cli.training.inputs import Samples
from persia_cli.training.step import Scored
from persia_cli.wire.job_messages import IntervalMetrics, latest
from persia_cli.wire.message import TableTotals
from persia_cli.wire.messages import Rows


class Interval:
    """The sums of the steps of an interval and of their look-ups."""

    def __init__(self, links: Sequence[Link], trains: bool = False) -> None:
        """Begin an interval, of training if it `trains`; `links` are those of ScoreHistogram."""
        self._trains = trains
        self._scores = ScoreHistogram(len(links), links, IN_TRAINING if trains else EXACT)
        self._by_query = QueryScores(len(links))
        self._samples = self._steps = self._ids = self._unknown = 0
        self._totals: tuple[TableTotals, ...] = ()
        self._staleness: Counter[int] = Counter()
        self._loss_sums = np.zeros(len(links))
        self._position_weight: float | None = None
        self.retrieval: dict[str, float] = {}
        """The retrieval metrics of the evaluated model, if any."""
        self.gpu_memory: int | None = None
        """Most bytes allocated on the rank's GPU so far, if it has one."""

    def add(self, samples: Samples, scored: Scored, rows: Rows) -> None:
        """Add one step; the staleness of its rows counts in training."""
        self._scores.add(scored.logits, samples.labels, samples.weights)
        if samples.query_ids is not None:
            self._by_query.add(samples.query_ids, scored.logits, samples.labels, samples.weights)
        self._loss_sums += scored.loss_sum
        if scored.position_weight is not None:
            self._position_weight = (self._position_weight or 0.0) + scored.position_weight
        if self._trains:
            self._staleness[rows.staleness] += 1
        self._samples += len(samples.labels)
        self._steps += 1
        self._ids += rows.ids
        self._unknown += rows.unknown
        # Answers of several embedding workers do not come in order.
        self._totals = latest((self._totals, rows.totals))

    def report(self, split: Literal["train", "eval"], last: int, seconds: float, more: bool) -> IntervalReport:
        """Return the sums of an interval that ends before step `last`; `more` if others of its evaluation follow."""
        sums = IntervalMetrics(
            split=split,
            last=last,
            samples=self._samples,
            steps=self._steps,
            staleness=dict(self._staleness),
            seconds=seconds,
            loss_sums=tuple(self._loss_sums.tolist()),
            position_weight=self._position_weight,
            ids=self._ids,
            unknown=self._unknown,
            tables=self._totals,
            more=more,
            retrieval=self.retrieval,
            gpu_memory=self.gpu_memory,
        )
        return sums, self._scores.encode(), self._by_query.encode()


class MetricLines:
    """The lines of metrics of a phase of training.

    Another thread may add steps, in their order; the training thread reports, since it may have to wait.
    """

    def __init__(
        self,
        links: Sequence[Link],
        every: int,
        first: int,
        report: Callable[[int, int, Interval, float], None],
    ) -> None:
        """Begin with step `first`; `report` is `NNWorker._report`."""
        self._links, self._every, self._report = links, every, report
        self._interval, self._since = Interval(links, trains=True), time.monotonic()
        self._done = self._last = first
        self._complete: queue.SimpleQueue[tuple[int, Interval, float]] = queue.SimpleQueue()

    def add(self, ready: ReadyBatch, samples: Samples, scored: Scored) -> None:
        """Add a step, which may complete a line."""
        self._done = ready.batch.step + 1
        self._interval.add(samples.counted, scored, ready.rows)
        if self._done % self._every == 0:
            self._complete_line()

    def send(self) -> None:
        """Report the complete lines."""
        while not self._complete.empty():
            self._report(TRAIN, *self._complete.get())

    def end(self) -> None:
        """Report all steps; none is in flight."""
        if self._last < self._done:
            self._complete_line()
        self.send()

    def _complete_line(self) -> None:
        now = time.monotonic()
        self._complete.put((self._done, self._interval, now - self._since))
        self._interval, self._since, self._last = Interval(self._links, trains=True), now, self._done
