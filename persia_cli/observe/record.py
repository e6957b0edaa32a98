"""The record of a run: merges what the ranks report into `metrics.jsonl` and watches the roles' figures."""

import time
from collections import deque
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np

from persia_cli.config.schema import Run
from persia_cli.config.schema.metric import keys_of
from persia_cli.control.position import StepGrid
from persia_cli.errors import WireError
from persia_cli.observe import staleness
from persia_cli.observe.figures import IntervalFigures, ReplicaFigures, read_figures
from persia_cli.observe.grouped import GroupedScores
from persia_cli.observe.journal import METRICS, Journal
from persia_cli.observe.reports import SCORES, Evaluation, Report, merged_scores
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.observe.spread import reliability
from persia_cli.plan.columns import is_grouped, label_names
from persia_cli.store.layout import DENSE_TABLE

Array = np.ndarray[Any, Any]

REPORTS_AHEAD = 4096
"""Reports of a rank that wait for one that was lost on the way, or for the other ranks."""

QUALITY = {
    "auc": ScoreHistogram.auc,
    "log_loss": ScoreHistogram.log_loss,
    "ne": ScoreHistogram.normalized_entropy,
    "calibration": ScoreHistogram.calibration,
    "pr_auc": ScoreHistogram.average_precision,
    "accuracy": ScoreHistogram.accuracy,
}
"""Figures of the scores of a task, by the key they have in a line of metrics."""

TOLD = {
    "evicted": (
        "note",
        "table {table} is full: the rows used longest ago make room for new ids; with a higher embedding.memory or "
        "embedding.capacity more of them stay",
    ),
    "refused": (
        "warning",
        "table {table} is full and refuses new ids; raise embedding.memory or embedding.capacity",
    ),
    "gradients_refused": (
        "warning",
        "table {table} was sent gradients that are not finite; those rows were not updated",
    ),
}
"""Counters of a table that the user hears of when they first leave 0: the kind of event and its text."""

WORK = ("steps_sent", "steps_scored")
"""Counts of what replicas did; all others are of what was not as it should be."""


class RunRecord:
    """The only writer of a run's metrics.

    A report is one log interval of one rank; each rank numbers its own 1, 2, 3, … A line is written when all ranks
    have reported the interval, in the order of intervals and merged in the order of ranks, so that the same run gives
    the same lines.
    """

    def __init__(self, run_dir: Path, events: Journal, run: Run, grid: StepGrid, step: int, samples: int) -> None:
        """Begin the record of a model that has been trained for `step` steps of `samples` samples in all."""
        self._metrics = Journal(run_dir / METRICS)
        self._events = events
        self._grid = grid
        self._labels = label_names(run)
        self._grouped = is_grouped(run)
        self._reports: list[dict[int, Report]] = [{} for _ in range(run.cluster.nn_workers)]
        self._next_report = 1
        self._progressive = self._no_scores()
        self._window: deque[list[Array]] = deque(maxlen=run.train.window)
        self._evaluation = Evaluation(len(self._labels))
        self._figures: dict[str, ReplicaFigures] = {}
        self._told: set[Hashable] = set()
        self._since = time.monotonic()
        self._step, self._samples = step, samples

    def begin_phase(self) -> None:
        """Start the clock of samples per second anew."""
        self._since = time.monotonic()

    def note(self, name: str, figures: dict[str, Any]) -> None:
        """Take a replica's latest figures, and tell once of each thing the user should know.

        Raises WireError if they are no figures of a replica.
        """
        noted = read_figures(ReplicaFigures, figures)
        self._figures[name] = noted
        for table, counters in noted.tables.items():
            for counter, (event, text) in TOLD.items():
                if counters.get(counter):
                    self._tell(event, (table, counter), text.format(table=table))
        refused = {"refused messages": noted.messages.get("refused", 0)}
        for count, value in (noted.counts | refused).items():
            if value and count not in WORK:
                about = f"{name} reports {count.replace('_', ' ')}"
                self._tell("warning", about, f"{about}: {value} so far")

    def _tell(self, event: str, about: Hashable, text: str) -> None:
        """Write an event with a text, but only one about each thing."""
        if about not in self._told:
            self._told.add(about)
            self._events.write(event=event, text=text)

    @property
    def step(self) -> int:
        """The last step that all ranks have reported."""
        return self._step

    def counted(self, counter: str) -> int:
        """Return a counter over all tables that features read and all servers, as last heard."""
        tables = [table for figures in self._figures.values() for table in figures.tables.items()]
        return sum(counters.get(counter, 0) for name, counters in tables if name != DENSE_TABLE)

    @property
    def steps_scored(self) -> int:
        """Steps of evaluations or a prediction that every rank is through with, as last heard."""
        heard = [self._figures.get(f"nn-worker-{rank}") for rank in range(len(self._reports))]
        return min(figures.counts.get("steps_scored", 0) if figures else 0 for figures in heard)

    def _store_figures(self) -> dict[str, Any]:
        """Return how full the tables are, and how many ids that were looked up so far had a row."""
        hits, misses = self.counted("hits"), self.counted("misses")
        hit_rate = round(hits / (hits + misses), 6) if hits + misses else None
        return {"rows": self.counted("rows"), "hit_rate": hit_rate, "evicted": self.counted("evicted")}

    def add_report(self, rank: int, number: int, body: dict[str, Any], arrays: list[Array]) -> list[dict[str, Any]]:
        """Take one rank's figures of an interval, and write the lines that are complete now; repeats change nothing.

        Returns the lines of evaluations among them. Raises WireError if they are no figures of an interval, or too far
        ahead.
        """
        figures = read_figures(IntervalFigures, body)
        self._no_scores().merge_encoded(*arrays[:SCORES])
        GroupedScores(len(self._labels)).merge_encoded(*arrays[SCORES:])
        if number >= self._next_report + REPORTS_AHEAD:
            raise WireError(f"report {number} came while report {self._next_report} is awaited")
        if number < self._next_report or number in self._reports[rank]:
            return []
        self._reports[rank][number] = (figures, [array.copy() for array in arrays])
        evaluated = []
        while all(self._next_report in reports for reports in self._reports):
            complete = [reports.pop(self._next_report) for reports in self._reports]
            self._next_report += 1
            if complete[0][0].split == "train":
                self._metrics.write(**self._training(complete))
            elif self._evaluation.add(complete):
                evaluated.append(self._evaluated())
                self._metrics.write(**evaluated[-1])
        return evaluated

    def _training(self, reports: list[Report]) -> dict[str, Any]:
        """Return the line of an interval of training."""
        intervals = [figures for figures, _ in reports]
        first = intervals[0]
        scores = merged_scores(reports, len(self._labels))
        self._step = first.last
        self._samples = self._grid.samples_before(self._step)
        self._progressive.merge(scores)
        self._window.append(list(scores.encode()))
        recent = self._no_scores()
        for encoded in self._window:
            recent.merge_encoded(*encoded)
        together = staleness.merged([interval.staleness for interval in intervals])
        line = self._line("train", intervals, scores) | self._quality(self._progressive)
        line |= {f"window_{name}": value for name, value in self._quality(recent).items()}
        line["staleness_mean"] = staleness.mean(together)
        line["staleness_max"] = max(together, default=0)
        line["staleness"] = [dict(sorted(interval.staleness.items())) for interval in intervals]
        if first.loss_scale is not None:
            line |= {"loss_scale": first.loss_scale, "steps_skipped": first.steps_skipped}
        return line | self._moment(sum(interval.samples for interval in intervals))

    def _evaluated(self) -> dict[str, Any]:
        """Return the line of the evaluation that is complete, and begin the next."""
        done, self._evaluation = self._evaluation, Evaluation(len(self._labels))
        line = self._line("eval", done.intervals, done.scores) | self._quality(done.scores)
        if self._grouped:
            line |= self._by_label("gauc", done.grouped.gauc())
        self._write_reliability(done.scores)
        samples = sum(interval.samples for interval in done.intervals)
        return line | {"eval_samples": samples} | self._moment(samples)

    def _line(self, split: str, intervals: list[IntervalFigures], scores: ScoreHistogram) -> dict[str, Any]:
        """Return where the model is and its loss over some intervals."""
        weight = scores.weight()
        loss = sum(interval.loss_sum for interval in intervals) / weight if weight else None
        return {"step": self._step, "samples": self._samples, "split": split, "loss": loss}

    def _moment(self, samples: int) -> dict[str, Any]:
        """Return the speed since the last line and how full the tables are."""
        now = time.monotonic()
        rate = samples / max(now - self._since, 1e-9)
        self._since = now
        return {"samples_per_s": round(rate, 1)} | self._store_figures()

    def _write_reliability(self, scores: ScoreHistogram) -> None:
        """Write how often what the model said in an evaluation came true, for each label."""
        labels = {label: reliability(scores, task) for task, label in enumerate(self._labels)}
        self._events.write(event="reliability", step=self._step, labels=labels)

    def _quality(self, scores: ScoreHistogram) -> dict[str, Any]:
        tasks = range(len(self._labels))
        return {
            key: value
            for name, figure in QUALITY.items()
            for key, value in self._by_label(name, [figure(scores, task) for task in tasks]).items()
        }

    def _by_label(self, figure: str, values: list[float | None]) -> dict[str, float | None]:
        """Return a figure of each task by its key, which bears the label if there are several."""
        return dict(zip(keys_of(figure, self._labels), values, strict=True))

    def _no_scores(self) -> ScoreHistogram:
        return ScoreHistogram(len(self._labels))

    def write_roles(self) -> None:
        """Write what every replica used and counted, and the counters of each table over all servers."""
        roles = []
        for name, figures in sorted(self._figures.items()):
            role, _, index = name.rpartition("-")
            used = {"role": role, "index": int(index), "cpu_s": round(figures.cpu_s, 3), "rss": figures.rss}
            counted = {"messages": figures.messages, "updates": figures.updates, "counts": figures.counts}
            roles.append(used | {kind: counts for kind, counts in counted.items() if counts})
        self._events.write(event="roles", roles=roles)
        tables: dict[str, dict[str, int]] = {}
        for figures in self._figures.values():
            for table, counters in figures.tables.items():
                total = tables.setdefault(table, {})
                for counter, value in counters.items():
                    total[counter] = total.get(counter, 0) + value
        self._events.write(event="tables", tables=tables)

    def close(self) -> None:
        """Close the metrics file."""
        self._metrics.close()
