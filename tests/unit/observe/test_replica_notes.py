"""The counters of replicas: rows, warnings once, and a summary at the end."""

from itertools import product
from typing import Any, Literal

import pytest

from persia_cli.observe.record import WORK
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.wire.job_messages import Counters, IntervalMetrics, ReplicaUsage
from persia_cli.wire.message import TableTotals
from tests.support.recorded import Recording

DISK = {"path": "/disk", "size": "1GiB"}
NO_SCORES = (ScoreHistogram(1).encode(), None)


def used(messages: dict[str, int] | None = None, **counters: Any) -> ReplicaUsage:
    """The usage and the counters of a replica."""
    return ReplicaUsage(1.0, 10, messages or {}, counters=Counters(**counters))


def interval(split: Literal["train", "eval"] = "train", **figures: Any) -> IntervalMetrics:
    """The report of a rank on four steps without samples."""
    return IntervalMetrics(split, 4, samples=0, steps=4, staleness={}, seconds=1.0, loss_sums=(0.0,), **figures)


def test_tables_are_as_the_last_look_up_of_the_interval_left_them(recording: Recording) -> None:
    """Heartbeats, which arrive at any time, do not change the result."""
    recorded = recording(ranks=2)
    recorded.record.note("embedding-server-0", used(tables={"a": {"rows": 500, "hits": 1, "evicted": 9}}))
    heard = [(1, [7, 1, 30, 10]), (0, [6, 1, 26, 10]), (0, [8, 1, 40, 12]), (1, [9, 2, 50, 12])]
    for number, (rank, tables) in enumerate(heard):
        recorded.record.add_report(rank, 1 + number // 2, interval(tables=(TableTotals(*tables),)), *NO_SCORES)
    told = [(line["rows"], line["evicted"], line["hit_rate"]) for line in recorded.lines]
    assert told == [(7, 1, 0.75), (9, 2, round(50 / 62, 6))]


def test_rows_on_disks_count_from_line_to_line(recording: Recording) -> None:
    """Hit rates, reads and waits are of the interval; a wait is that of the slowest server."""
    recorded = recording(ranks=1, embedding={"cold": DISK})
    one = TableTotals(rows=10, hits=80, misses=20, evicted=9, returned=5, cold_reads=6, cold_waited_us=400)
    two = TableTotals(rows=10, cold_waited_us=4000, cold_loaded=3, dropped=1, cold_written=4096)
    more = TableTotals(rows=10, hits=160, misses=40, evicted=29, returned=15, cold_reads=30, cold_waited_us=8400)
    for number, tables in enumerate([(one, two), (more, two), (more, two)]):
        split = "train" if number < 2 else "eval"
        recorded.record.add_report(0, 1 + number, interval(split, tables=tables), *NO_SCORES)
    keys = ["cold_rows", "cold_dropped", "memory_hit_rate", "cold_hit_rate", "cold_reads_per_s", "cold_wait_ms"]
    assert [[line[key] for key in [*keys, "cold_written"]] for line in recorded.lines] == [
        [6, 1, 0.75, 0.05, 6.0, 1.0, 4096],
        [16, 1, 0.7, 0.1, 24.0, 2.0, 4096],
        [16, 1, None, None, 0.0, 0.0, 4096],
    ]
    plain = recording(ranks=1)
    plain.record.add_report(0, 1, interval(tables=(one,)), *NO_SCORES)
    assert [key for key in plain.lines[0] if "cold" in key or "memory" in key] == []


def test_rows_that_went_to_disks_get_no_note(recording: Recording) -> None:
    recorded = recording(embedding={"cold": DISK})
    recorded.record.note("embedding-server-0", used(tables={"a": {"rows": 500, "evicted": 9, "dropped": 0}}))
    assert recorded.told("note") == recorded.warnings == []


def test_look_ups_of_training_and_of_evaluations_are_separate(recording: Recording) -> None:
    recorded = recording(ranks=2)
    looked_up = [("train", 80, 8), ("train", 20, 2), ("eval", 30, 12), ("eval", 10, 0), ("train", 100, 0)]
    looked_up += [("train", 0, 0), ("eval", 5, 0), ("eval", 5, 1)]
    for number, (split, ids, unknown) in enumerate(looked_up):
        body = interval(split, ids=ids, unknown=unknown)
        recorded.record.add_report(number % 2, 1 + number // 2, body, *NO_SCORES)
    assert [line["look_up_hit_rate"] for line in recorded.lines] == [0.9, 0.9, 0.95, 0.95]
    assert [line.get("unknown") for line in recorded.lines] == [None, 0.3, None, 0.1]
    assert ["unknown" in line for line in recorded.lines] == [False, True, False, True]


def test_tables_that_share_memory_are_reported_together(recording: Recording) -> None:
    alone = {"tables": {"b": {"share": 0.25}}, "when_full": "refuse"}
    recorded = recording(sparse=("a", "b", "c", "d", "e"), embedding=alone)
    for server in range(2):
        full = {table: {"refused": 1} for table in "edcb"}
        recorded.record.note(f"embedding-server-{server}", used(tables=full))
    rest = "is full and refuses new ids, which count as zeros; raise embedding.memory"
    assert recorded.warnings == [f"the shared memory of 4 tables (a, c, d, …) {rest}", f"table b {rest}"]


def test_irregular_counts_are_reported_once_per_replica(recording: Recording) -> None:
    recorded = recording()
    for name, count in product(("data-loader-0", "data-loader-1"), (0, 3, 8)):
        recorded.record.note(name, used(counts=dict.fromkeys((*WORK, "labels_above_the_one_before"), count)))
        recorded.record.note(name, used(messages={"refused": count, "resent": 5}))
    assert recorded.warnings == [
        "data-loader-0 reports labels above the one before: 3 so far",
        "data-loader-0 reports refused messages: 3 so far",
        "data-loader-1 reports labels above the one before: 3 so far",
        "data-loader-1 reports refused messages: 3 so far",
    ]


def test_the_roles_and_tables_of_a_job_are_summed_up(recording: Recording) -> None:
    recorded = recording()
    tables = ({"a": {"rows": 5, "refused": 0}, "b": {"rows": 2}}, {"a": {"rows": 7, "refused": 3}})
    for server, counters in enumerate(tables):
        recorded.record.note(f"embedding-server-{server}", used(tables=counters, updates={"applied": 4}))
    recorded.record.note(
        "data-loader-0", ReplicaUsage(0.12345, 7, {"lost": 1}, counters=Counters(counts={"steps_sent": 9}))
    )
    recorded.record.write_roles()
    clock = {"ran_s": 0.0, "waited_s": 0.0}
    assert recorded.told("roles") == [
        {
            "roles": [
                {"role": "data-loader", "index": 0, "cpu_s": 0.123, "rss": 7, "messages": {"lost": 1},
                 "counts": {"steps_sent": 9}} | clock,
                {"role": "embedding-server", "index": 0, "cpu_s": 1.0, "rss": 10, "updates": {"applied": 4}} | clock,
                {"role": "embedding-server", "index": 1, "cpu_s": 1.0, "rss": 10, "updates": {"applied": 4}} | clock,
            ]
        }
    ]  # fmt: skip
    assert recorded.told("tables") == [{"tables": {"a": {"rows": 12, "refused": 3}, "b": {"rows": 2}}}]


@pytest.mark.parametrize(
    ("embedding", "counter", "event", "begin", "end"),
    [
        ({}, "evicted", "note", "table a is full: only the ids that come most often", "counts the ids)"),
        ({"when_full": "evict_lru"}, "evicted", "note", "table a is full: new ids replace the rows used longest", ""),
        ({}, "refused", "note", "table a is full: only the ids that come most often", "counts the ids)"),
        ({"when_full": "evict_lru"}, "refused", "warning", "table a is too small", "embedding.memory"),
        ({"when_full": "refuse", "memory": "1GiB"}, "refused", "warning", "table a is full", "embedding.memory"),
        ({"when_full": "refuse", "capacity": 100}, "refused", "warning", "table a is full", "embedding.capacity"),
        ({"cold": DISK}, "dropped", "warning", "the space on disks of table a is used up", ""),
        ({}, "gradients_refused", "warning", "table a received gradients that are not finite", ""),
    ],
)
def test_a_full_table_is_reported_once(
    recording: Recording, embedding: dict[str, Any], counter: str, event: str, begin: str, end: str
) -> None:
    recorded = recording(embedding=embedding)
    for server, count in product((0, 1), (0, 2, 9)):
        recorded.record.note(f"embedding-server-{server}", used(tables={"a": {counter: count, "misses": 9}}))
    notes = [note["text"] for note in recorded.told("note")]
    [text] = notes + recorded.warnings
    assert bool(notes) == (event == "note")
    assert text.startswith(begin)
    assert text.endswith(end)


def test_the_queue_of_a_replica_is_what_others_wait_for(recording: Recording) -> None:
    record = recording().record
    for number, incarnation, pending in ((0, 1, 9), (0, 2, 2), (1, 1, 3)):
        waits = {"embedding-server-0": pending}
        record.note(f"embedding-worker-{number}", ReplicaUsage(1.0, 10, unanswered=waits), incarnation)
    assert record.queues() == {"embedding-server-0": 5}
