"""The record of a run: it merges the reports of ranks into `metrics.jsonl` and checks the roles' counters.

Users are notified of full tables, rows left out and gradients refused by the counters of tables.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import zip_longest
from operator import add
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec import structs

from persia_cli.config.schema import Run
from persia_cli.config.schema.loss import task_weights
from persia_cli.control.calibration import Calibration
from persia_cli.control.portions import Portions
from persia_cli.control.position import StepGrid
from persia_cli.errors import WireError
from persia_cli.observe import staleness
from persia_cli.observe.calibration import calibrated, corrected
from persia_cli.observe.record_state import RecordState
from persia_cli.observe.scores import (
    EXACT,
    IN_TRAINING,
    WINDOW,
    QueryScores,
    ScoreHistogram,
    by_label,
    quality,
    reliability,
    sum_of,
)
from persia_cli.plan.columns import has_query_ids, label_names
from persia_cli.plan.embedding import embedding_layout
from persia_cli.wire.job_messages import (
    FINISHED,
    REPORTS_AHEAD,
    SENT_AGAIN,
    IntervalMetrics,
    ReplicaUsage,
    ScoreCounts,
    ScoredSamples,
    latest,
    together,
)
from persia_cli.wire.message import TableTotals


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


Array = np.ndarray[Any, Any]

DECAYED = ("loss", "auc", "ne", "calibration")
"""Metrics of portions that have a decayed mean, those of each label too."""
DECAY = 0.9
"""The weight of a portion in it, relative to that of the portion after it."""
ASKED_FOR = ("filled_dense_values", "truncated_sequences")
"""Counts of values that settings change: `dataset.fill` and `max_length`."""
WORK = ("steps_sent", SENT_AGAIN, "steps_scored", "bytes_verified", "rows_loaded", *ASKED_FOR)
"""Counts of regular work of replicas; all other counts are of irregular events."""


class Lines(Protocol):
    """A journal to which lines are appended."""

    def write(self, **fields: Any) -> None:
        """Append an object of these keys and values."""


class RunRecord:
    """The only writer of a run's metrics.

    A report covers one log interval of one rank; each rank numbers its reports 1, 2, 3, … A line is written when all
    ranks have reported the interval. Lines are in the order of intervals, and reports are merged in the order of ranks,
    so that the same run gives the same lines.
    """

    def __init__(
        self,
        events: Lines,
        metrics: Lines,
        run: Run,
        grid: StepGrid | Portions,
        step: int,
        samples: int,
        state: RecordState | None = None,
        scored_part: str = "eval",
        calibrates: bool = False,
    ) -> None:
        """Begin the record of a model that has been trained for `step` steps and `samples` samples so far.

        A resumed run continues from the `state` of its record. `scored_part` is the split of its lines of evaluations,
        each of which is fitted a correction if it `calibrates`.
        """
        self._metrics, self._events = metrics, events
        self._grid = grid
        self._labels = label_names(run)
        self._losses = dict(zip(self._labels, run.losses, strict=True))
        self._calibrates, self._calibration = calibrates, tuple[Calibration, ...]()
        self._links, self._task_weights = run.links, task_weights(run.losses)
        self._cluster = run.cluster
        self._has_queries = has_query_ids(run)
        self._weighted = getattr(run.dataset, "weight", None) is not None
        self._scored_part = scored_part
        self._reports: list[dict[int, RankReport]] = [{} for _ in range(run.cluster.nn_workers)]
        self._next_report = 1
        self._progressive = ScoreHistogram(len(self._labels), limit=IN_TRAINING)
        self._recent: deque[ScoreHistogram] = deque(maxlen=WINDOW)
        """Scores of the last lines of training."""
        self._evaluation = EvaluationReports(len(self._labels))
        self._tables: tuple[TableTotals, ...] = ()
        self._tables_before = TableTotals()
        """Counters of the tables when the run was resumed; servers count from there."""
        self._has_cold_tier = run.embedding.cold is not None
        self._tables_of_line: tuple[TableTotals, ...] = ()
        """Counters of the tables of each server at the last line."""
        self._ids = self._unknown = 0
        """Number of look-ups of training so far, and of those that found no row."""
        self._usage: dict[tuple[str, int], ReplicaUsage] = {}
        """(name, incarnation) -> usage"""
        self._table_notes = TableNotes(run)
        self._notified: set[str] = set()
        self._unwritten, self._why_unwritten = Counter[str](), ""
        self._step, self._samples = step, samples
        self.bad_rows = 0
        """Rows that are left out so far since they cannot be read."""
        self.behind: dict[str, float | None] = {}
        """Of data that grows: how far training is behind it, in seconds."""
        self.is_held: bool | None = None
        """True while the guard holds versions back; None without a guard."""
        self._decayed: dict[str, tuple[float, float]] = {}
        """Of each metric of portions that were scored before they were trained: a sum and its weight, both decayed."""
        if state is not None:
            self._progressive, self._ids, self._unknown = state.scores, state.look_ups, state.unknown
            self._tables_before = state.tables
            self._recent.extend(state.recent)
            self._calibration = state.calibration
            self._decayed = dict(state.decayed)

    def state(self) -> RecordState:
        """Return the state from which a resumed run continues the record."""
        totals = together([self._tables_before, *self._tables])
        counts = self._ids, self._unknown, totals
        return RecordState(self._progressive, *counts, tuple(self._recent), self._calibration, dict(self._decayed))

    def note(self, name: str, usage: ReplicaUsage, incarnation: int = 1) -> None:
        """Store the latest usage of a replica's process, and notify the user once of each problem in it."""
        self._usage[name, incarnation] = usage
        before = self._usage.get((name, incarnation - 1))
        if before is not None and FINISHED in usage.counters.updates:
            # It has taken over the memory of an earlier process, with its counts.
            self._usage[name, incarnation - 1] = without_recovered(before)
        for table, counters in usage.counters.tables.items():
            for event, text in self._table_notes.of(table, counters):
                self._notify(event, text, text)
        refused = {"refused messages": usage.messages.get("refused", 0)}
        for count, value in (usage.counters.counts | refused).items():
            if value and count not in WORK:
                about = f"{name} reports {count.replace('_', ' ')}"
                self._notify("warning", about, f"{about}: {value} so far")

    def _notify(self, event: str, about: str, text: str) -> None:
        """Write an event with a text, but only once for each subject."""
        if about not in self._notified:
            self._notified.add(about)
            self._events.write(event=event, text=text)

    @property
    def step(self) -> int:
        """The last step that all ranks have reported."""
        return self._step

    @property
    def samples(self) -> int:
        """Samples trained up to that step."""
        return self._samples

    @property
    def steps_scored(self) -> int:
        """Number of steps of evaluations or of a prediction that all ranks have finished, by their last counters."""
        scored = dict.fromkeys((f"nn-worker-{rank}" for rank in range(len(self._reports))), 0)
        for (name, _), usage in sorted(self._usage.items()):
            if name in scored:
                scored[name] = usage.counters.counts.get("steps_scored", 0)
        return min(scored.values())

    def _table_metrics(self, intervals: list[IntervalMetrics]) -> dict[str, Any]:
        """Return the rows of the tables after the look-ups of intervals, and the fraction of ids that had a row.

        `hit_rate` counts the distinct ids of each batch, `look_up_hit_rate` all look-ups, repeats included.
        """
        self._tables = latest([self._tables, *(interval.tables for interval in intervals)])
        totals = together([self._tables_before, *self._tables])
        hit_rate = _fraction(totals.hits, totals.hits + totals.misses)
        of_look_ups = _fraction(self._ids - self._unknown, self._ids)
        metrics = {"rows": totals.rows, "hit_rate": hit_rate, "look_up_hit_rate": of_look_ups}
        return metrics | {"evicted": totals.evicted}

    def has_written(self, number: int) -> bool:
        """Return True if all ranks have sent the report of this number, and it is in the record."""
        return number < self._next_report

    def add_report(
        self, rank: int, number: int, metrics: IntervalMetrics, scores: ScoreCounts, samples: ScoredSamples | None
    ) -> list[dict[str, Any]]:
        """Add a rank's metrics of an interval, and write the lines that are complete now; repeats change nothing.

        Return the lines of evaluations among them. Raise WireError if the metrics are not valid, or too far ahead.
        """
        ScoreHistogram.decode(len(self._labels), scores)
        QueryScores(len(self._labels)).merge_encoded(samples)
        if number >= self._next_report + REPORTS_AHEAD:
            raise WireError(f"report {number} arrived, but report {self._next_report} is still missing")
        if number < self._next_report or number in self._reports[rank]:
            return []
        # Copies, since an array of a message may retain the memory of the whole message.
        samples = samples and ScoredSamples(*map(_copied, samples))
        self._reports[rank][number] = RankReport(metrics, ScoreCounts(*map(_copied, scores)), samples)
        evaluated = []
        while all(self._next_report in reports for reports in self._reports):
            complete = [reports.pop(self._next_report) for reports in self._reports]
            self._next_report += 1
            if complete[0].metrics.split == "train":
                self._metrics.write(**self._training(complete))
            elif self._evaluation.add(complete):
                evaluated.append(self._evaluated())
                self._metrics.write(**evaluated[-1])
        return evaluated

    def _training(self, reports: list[RankReport]) -> dict[str, Any]:
        """Return the line of an interval of training."""
        intervals = [report.metrics for report in reports]
        first = intervals[0]
        scores = merged_scores(reports, len(self._labels), IN_TRAINING)
        self._step, self._calibration = first.last, ()
        self._samples = self._grid.samples_before(self._step)
        self._progressive.merge(scores)
        self._ids += sum(interval.ids for interval in intervals)
        self._unknown += sum(interval.unknown for interval in intervals)
        tasks = range(self._progressive.tasks)
        if self._weighted and self._samples and not any(self._progressive.weight(task) for task in tasks):
            self._notify(
                "warning", "weight", f"the {self._samples:,} samples trained so far all weigh 0: nothing is learnt"
            )
        self._recent.append(scores)
        together = staleness.merged([interval.staleness for interval in intervals])
        line = self._line("train", intervals, scores) | quality(self._links, self._progressive)
        window = sum_of(len(self._labels), self._recent)
        line |= {f"window_{name}": value for name, value in quality(self._links, window).items()}
        line["staleness_mean"] = staleness.mean(together)
        line["staleness_max"] = max(together, default=0)
        line["staleness"] = [dict(sorted(interval.staleness.items())) for interval in intervals]
        seconds = max(interval.seconds for interval in intervals)
        held = {} if self.is_held is None else {"versions_held": int(self.is_held)}
        return line | self.behind | held | self._common(intervals, seconds)

    def _evaluated(self) -> dict[str, Any]:
        """Return the line of the evaluation that is complete, and start the next one."""
        done, self._evaluation = self._evaluation, EvaluationReports(len(self._labels))
        line = self._line(self._scored_part, done.intervals, done.scores) | quality(self._links, done.scores)
        if self._has_queries:
            line |= by_label(self._links, "gauc", done.by_query.gauc)
        for interval in done.intervals:
            line |= interval.retrieval
        self._write_reliability(done.scores)
        samples = sum(interval.samples for interval in done.intervals)
        if self._calibrates:
            self._calibrate(done.scores, samples)
        ids, unknown = (sum(getattr(interval, name) for interval in done.intervals) for name in ("ids", "unknown"))
        line |= {"eval_samples": samples, "unknown": _fraction(unknown, ids)}
        if isinstance(self._grid, Portions):
            line |= self._means(line)
        return line | self._common(done.intervals, done.seconds)

    def _means(self, line: dict[str, Any]) -> dict[str, float]:
        """Return the decayed means of the metrics of portions, with those of this line."""
        for name, value in line.items():
            if name.partition("_")[0] in DECAYED and value is not None:
                total, weight = self._decayed.get(name, (0.0, 0.0))
                self._decayed[name] = DECAY * total + (1.0 - DECAY) * value, DECAY * weight + (1.0 - DECAY)
        return {f"decayed_{name}": total / weight for name, (total, weight) in self._decayed.items()}

    def _line(self, split: str, intervals: list[IntervalMetrics], scores: ScoreHistogram) -> dict[str, Any]:
        """Return step and samples of the model, and its loss over some intervals."""
        weights = [scores.weight(task) for task in range(scores.tasks)]
        if of_positions := [each.position_weight for each in intervals if each.position_weight is not None]:
            weights = [reduce(add, of_positions)]
        # Plain additions, as scores have them: sum() rounds differently from Python 3.12 on.
        sums = [reduce(add, column) for column in zip(*(interval.loss_sums for interval in intervals), strict=True)]
        parts = zip(self._task_weights, sums, weights, strict=True)
        means = [share * (total / weight) for share, total, weight in parts if weight]
        loss = reduce(add, means) if means else None
        return {"step": self._step, "samples": self._samples, "split": split, "loss": loss}

    def _common(self, intervals: list[IntervalMetrics], seconds: float) -> dict[str, Any]:
        """Return the speed by the clock of the slowest rank, the memory of GPUs and the metrics of the tables."""
        samples = sum(interval.samples for interval in intervals)
        metrics: dict[str, Any] = {"samples_per_s": round(samples / max(seconds, 1e-9), 1)}
        if peaks := [interval.gpu_memory for interval in intervals if interval.gpu_memory is not None]:
            metrics["gpu_memory"] = max(peaks)
        if self.bad_rows:
            metrics["bad_rows"] = self.bad_rows
        metrics |= self._table_metrics(intervals)
        if self._has_cold_tier:
            steps = sum(interval.steps for interval in intervals) / self._cluster.nn_workers
            metrics |= cold_metrics(self._tables_of_line, self._tables, seconds, steps)
            self._tables_of_line = self._tables
        return metrics

    def _write_reliability(self, scores: ScoreHistogram) -> None:
        """Write the reliability diagram of an evaluation for each label whose predictions are probabilities."""
        tasks = enumerate(self._links.items())
        labels = {label: reliability(scores, task) for task, (label, link) in tasks if link == "logistic"}
        self._events.write(event="reliability", step=self._step, labels=labels)

    def _calibrate(self, scores: ScoreHistogram, samples: int) -> None:
        """Fit corrections of the present model's labels; write those that improve it, and its metrics with them."""
        self._calibration, metrics = calibrated(self._losses, scores, samples)
        if self._calibration:
            labels = msgspec.to_builtins(self._calibration)
            diagrams = {
                correction.label: reliability(corrected(scores, correction.task, correction.slope, correction.shift))
                for correction in self._calibration
            }
            self._events.write(
                event="calibrated", step=self._step, labels=labels, metrics=metrics, reliability=diagrams
            )

    def write_roles(self) -> None:
        """Write the gaps of the trace, usage and counters of every process, and the summed counters of each table."""
        if self._unwritten:
            spans, names = sum(self._unwritten.values()), ", ".join(sorted(self._unwritten))
            text = f"the trace lacks {spans:,} spans of {names}, which could not be written: {self._why_unwritten}"
            self._events.write(event="warning", text=text)
        self._events.write(event="roles", roles=self.roles())
        self._events.write(event="tables", tables=self.tables())

    def roles(self) -> list[dict[str, Any]]:
        """Return usage and counters of every process so far, in the order of names and incarnations."""
        roles = []
        for (name, _), usage in sorted(self._usage.items()):
            role, _, index = name.rpartition("-")
            used = {"role": role, "index": int(index), "cpu_s": round(usage.cpu_s, 3), "rss": usage.rss}
            used |= {"ran_s": round(usage.ran_s, 3), "waited_s": round(usage.waited_s, 3)}
            if cpus := self._cluster.processors_of(role, int(index)):
                used["cpus"] = cpus
            counted = {
                "messages": usage.messages,
                "links": usage.links,
                "exchanged": usage.exchanged,
                "updates": usage.counters.updates,
                "counts": usage.counters.counts,
            }
            roles.append(used | {kind: counts for kind, counts in counted.items() if counts})
        return roles

    def tables(self) -> dict[str, dict[str, int]]:
        """Return the counters of each table so far, over all servers."""
        tables: dict[str, dict[str, int]] = {}
        for usage in self._usage.values():
            for table, counters in usage.counters.tables.items():
                total = tables.setdefault(table, {})
                for counter, value in counters.items():
                    total[counter] = total.get(counter, 0) + value
        return tables

    def queues(self) -> Counter[str]:
        """Return the number of requests that each replica has to answer at present."""
        queues = Counter[str]()
        for name, incarnation in self._usage:
            if (name, incarnation + 1) not in self._usage:
                queues.update(self._usage[name, incarnation].unanswered)
        return queues

    def record_unwritten(self, name: str, spans: int, why: str) -> None:
        """Count the spans of a replica that the disk has refused."""
        self._unwritten[name] += spans
        self._why_unwritten = why


def without_recovered(usage: ReplicaUsage) -> ReplicaUsage:
    """Return the usage of an embedding server without the counts that its memory file has."""
    updates = {outcome: count for outcome, count in usage.counters.updates.items() if outcome != "applied"}
    return structs.replace(usage, counters=structs.replace(usage.counters, updates=updates, tables={}))


def _fraction(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _copied(array: Array | None) -> Any:
    return None if array is None else array.copy()


def cold_metrics(
    before: Sequence[TableTotals], now: Sequence[TableTotals], seconds: float, steps: float
) -> dict[str, Any]:
    """Return the metrics of an interval of so many seconds and steps; totals are those of each server."""
    first, last = together([TableTotals(), *before]), together([TableTotals(), *now])
    requested = last.hits + last.misses - first.hits - first.misses
    returned = last.returned - first.returned
    in_memory = last.hits - first.hits - returned
    waits_us = [
        after.cold_waited_us - former.cold_waited_us
        for former, after in zip_longest(before, now, fillvalue=TableTotals())
    ]
    return {
        "cold_rows": last.cold_rows,
        "cold_dropped": last.dropped,
        "memory_hit_rate": round(in_memory / requested, 6) if requested else None,
        "cold_hit_rate": round(returned / requested, 6) if requested else None,
        "cold_reads_per_s": round((last.cold_reads - first.cold_reads) / max(seconds, 1e-9), 1),
        "cold_wait_ms": round(max(waits_us, default=0) / 1000 / max(steps, 1), 3),
        "cold_written": last.cold_written,
    }


NOTIFICATIONS = {
    "evicted": (
        "note",
        "{memory} is full: only the ids that come most often keep a row, and others count as zeros; raise {budget} "
        "(persia data inspect counts the ids)",
    ),
    "refused": ("warning", "{memory} is full and refuses new ids, which count as zeros; raise {budget}"),
    "left_out": (
        "warning",
        "{memory} could not take all rows of the checkpoint: those used longest ago were left out; raise {budget} to "
        "load all of them",
    ),
    "gradients_refused": (
        "warning",
        "table {table} received gradients that are not finite or are beyond 1.8e19; those rows were not updated",
    ),
}
"""Counters of a table of which the user is notified when they first leave 0: the kind of event and its text."""
ALL_IN_USE = (
    "{memory} is too small for some batches: every row that a new id could have replaced was in use in that step, so "
    "the id counts as zeros; raise {budget}"
)
"""Text for the counter "refused" of full tables that evict the least recently used rows."""
USED_LONGEST_AGO = "{memory} is full: new ids replace the rows used longest ago; raise {budget} to keep more of them"
"""Text for the counter "evicted" of the same tables."""
DROPPED = (
    "the space on disks of {memory} is used up: the rows used longest ago are lost; raise embedding.cold.size, or free "
    "space at embedding.cold.path if that disk is full"
)
"""Text for the counter "dropped" of tables whose rows leave memory for disks; there, "evicted" has no note."""


class TableNotes:
    """The notes and warnings about the tables of a run; tables that share capacity are named together."""

    def __init__(self, run: Run) -> None:
        """Find the capacity of each table, and the setting that bounds it."""
        self._notifications = dict(NOTIFICATIONS)
        if run.embedding.cold is not None:
            del self._notifications["evicted"]
            self._notifications["dropped"] = ("warning", DROPPED)
        elif run.embedding.when_full == "evict_lru":
            self._notifications["refused"] = ("warning", ALL_IN_USE)
            self._notifications["evicted"] = ("note", USED_LONGEST_AGO)
        elif run.embedding.when_full != "refuse":
            self._notifications["refused"] = NOTIFICATIONS["evicted"]
        layout = embedding_layout(run)
        self._budget = layout.budget
        self._memories = {
            table.name: _memory([table.name for table in group.tables])
            for group in layout.groups
            for table in group.tables
        }

    def of(self, table: str, counters: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield the kind of event and the text for each counter of the table that is not 0."""
        memory = self._memories.get(table, f"table {table}")
        for counter, (event, template) in self._notifications.items():
            if counters.get(counter):
                yield event, template.format(table=table, memory=memory, budget=self._budget)


def _memory(tables: Sequence[str]) -> str:
    """Name the capacity that the tables of a feature group share."""
    if len(tables) == 1:
        return f"table {tables[0]}"
    names = [*tables[:3], *(["…"] if len(tables) > 3 else [])]
    return f"the shared memory of {len(tables)} tables ({', '.join(names)})"
