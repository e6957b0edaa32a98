"""The counters of replicas: rows, warnings once, and a summary at the end."""

import math
from itertools import product
from typing import Any, Literal

import pytest

from persia_cli.observe.scores import ScoreHistogram
from persia_cli.wire.message import TableTotals
from persia_cli.wire.reports import Counters, IntervalMetrics, ReplicaUsage
from tests.support.recorded import Recording

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


def test_each_server_is_described_by_its_last_rank(recording: Recording) -> None:
    """With two ranks at once, one may be the last at one server and the other at the other."""
    recorded = recording(ranks=2)
    reports = [([5, 0, 2, 5], [4, 0, 8, 4]), ([3, 0, 1, 3], [6, 1, 10, 7]), ([], []), ([5, 0, 4, 5],)]
    for number, tables in enumerate(reports):
        recorded.record.add_report(
            number % 2, 1 + number // 2, interval(tables=tuple(TableTotals(*each) for each in tables)), *NO_SCORES
        )
    told = [(line["rows"], line["evicted"], line["hit_rate"]) for line in recorded.lines]
    assert told == [(11, 1, 0.5), (11, 1, round(14 / 26, 6))]


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


@pytest.mark.parametrize(
    ("when_full", "which"), [("auto", "rows that come less often"), ("evict_lru", "the rows used longest ago")]
)
def test_the_first_evictions_are_a_note_and_no_warning(recording: Recording, when_full: str, which: str) -> None:
    recorded = recording(embedding={"when_full": when_full})
    for server, evicted in product((0, 1), (0, 2, 9)):
        recorded.record.note(f"embedding-server-{server}", used(tables={"a": {"evicted": evicted}}))
    assert recorded.told("note") == [
        {"text": f"table a is full: new ids replace {which}; raise embedding.memory to keep more of them"}
    ]
    assert recorded.warnings == []


def test_ids_that_are_not_admitted_cause_no_note(recording: Recording) -> None:
    recorded = recording()
    quiet = {"not_admitted": 3, "misses": 9, "admitted": 6, "gradients_missing": 4, "bytes": 5}
    recorded.record.note("embedding-server-0", used(tables={"a": quiet}))
    assert (recorded.told("note"), recorded.warnings) == ([], [])


def test_a_full_table_is_reported_once_with_its_key(recording: Recording) -> None:
    for budget, given in (("memory", "1GiB"), ("capacity", 100)):
        recorded = recording(embedding={"when_full": "refuse", budget: given})
        for server, refused in product((0, 1), (0, 2, 9)):
            recorded.record.note(f"embedding-server-{server}", used(tables={"a": {"refused": refused}}))
        assert recorded.warnings == [
            f"table a is full and refuses new ids, which count as zeros; raise embedding.{budget}"
        ]


def test_ids_without_a_row_where_rows_are_evicted_have_another_reason(recording: Recording) -> None:
    recorded = recording(embedding={"when_full": "evict_lru"})
    recorded.record.note("embedding-server-0", used(tables={"a": {"refused": 2}}))
    assert recorded.warnings == [
        "table a is too small for some batches: every row that a new id could have replaced was in use in that "
        "step, so the id counts as zeros; raise embedding.memory"
    ]


def test_ids_that_come_less_often_than_others_are_a_note(recording: Recording) -> None:
    recorded = recording()
    recorded.record.note("embedding-server-0", used(tables={"a": {"refused": 2}}))
    assert recorded.warnings == []
    text = "table a is full: an id that comes less often than those that have a row counts as zeros"
    assert recorded.told("note") == [{"text": f"{text}; raise embedding.memory to keep more of them"}]


def test_tables_that_share_memory_are_reported_together(recording: Recording) -> None:
    alone = {"tables": {"b": {"share": 0.25}}, "when_full": "refuse"}
    recorded = recording(sparse=("a", "b", "c", "d", "e"), embedding=alone)
    for server in range(2):
        full = {table: {"refused": 1} for table in "edcb"}
        recorded.record.note(f"embedding-server-{server}", used(tables=full))
    rest = "is full and refuses new ids, which count as zeros; raise embedding.memory"
    assert recorded.warnings == [f"the shared memory of 4 tables (a, c, d, …) {rest}", f"table b {rest}"]


def test_gradients_that_are_not_finite_are_reported_once(recording: Recording) -> None:
    recorded = recording()
    for refused in (0, 1, 2):
        recorded.record.note("embedding-server-0", used(tables={"a": {"gradients_refused": refused}}))
    assert recorded.warnings == [
        "table a received gradients that are not finite or are beyond 1.8e19; those rows were not updated"
    ]


def test_tables_of_any_name_have_their_warnings(recording: Recording) -> None:
    recorded = recording(sparse=("ad:id", "{table}"))
    wrong = {"gradients_refused": 1}
    recorded.record.note("embedding-server-0", used(tables={"ad:id": wrong, "{table}": wrong, "unknown": wrong}))
    assert [text.partition(" received")[0] for text in recorded.warnings] == [
        "table ad:id",
        "table {table}",
        "table unknown",
    ]


def test_changed_and_refused_values_are_reported_once_per_replica(recording: Recording) -> None:
    recorded = recording()
    for name, count in product(("data-loader-0", "data-loader-1"), (0, 3, 8)):
        recorded.record.note(name, used(counts={"steps_sent": count, "truncated_sequences": count}))
        recorded.record.note(name, used(messages={"refused": count, "resent": 5}))
    assert recorded.warnings == [
        "data-loader-0 reports truncated sequences: 3 so far",
        "data-loader-0 reports refused messages: 3 so far",
        "data-loader-1 reports truncated sequences: 3 so far",
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
    assert recorded.told("roles") == [
        {
            "roles": [
                {"role": "data-loader", "index": 0, "cpu_s": 0.123, "rss": 7, "messages": {"lost": 1},
                 "counts": {"steps_sent": 9}},
                {"role": "embedding-server", "index": 0, "cpu_s": 1.0, "rss": 10, "updates": {"applied": 4}},
                {"role": "embedding-server", "index": 1, "cpu_s": 1.0, "rss": 10, "updates": {"applied": 4}},
            ]
        }
    ]  # fmt: skip
    assert recorded.told("tables") == [{"tables": {"a": {"rows": 12, "refused": 3}, "b": {"rows": 2}}}]


def test_a_pinned_replica_is_reported_with_its_processors(recording: Recording) -> None:
    recorded = recording(ranks=2, pin={"nn_worker": ["0-3", "node:1"]})
    for name in ("data-loader-0", "driver-0", "nn-worker-0", "nn-worker-1"):
        recorded.record.note(name, used())
    recorded.record.write_roles()
    [told] = recorded.told("roles")
    assert [each.get("cpus") for each in told["roles"]] == [None, None, "0-3", "node:1"]


def test_a_number_that_is_not_finite_does_not_cost_the_summary(recording: Recording) -> None:
    recorded = recording()
    recorded.record.note("nn-worker-0", ReplicaUsage(math.nan, 7))
    recorded.record.write_roles()
    assert recorded.told("roles") == [{"roles": [{"role": "nn-worker", "index": 0, "cpu_s": None, "rss": 7}]}]
