"""What replicas count on their way: rows, warnings told once, and a summary at the end."""

import math
from itertools import product
from typing import Any

import pytest

from persia_cli.errors import WireError
from persia_cli.observe.grouped import GroupedScores
from persia_cli.observe.scores import ScoreHistogram
from tests.support.recorded import Recording

USED = {"cpu_s": 1.0, "rss": 10}
NO_SCORES = [*ScoreHistogram(1).encode(), *GroupedScores(1).encode()]


def test_rows_are_those_of_all_tables_and_servers_as_last_heard(recording: Recording) -> None:
    recorded = recording(ranks=1)
    note = recorded.record.note
    note("embedding-server-0", USED | {"tables": {"a": {"rows": 5}, "b": {"rows": 1}}})
    note("embedding-server-1", USED | {"tables": {"a": {"rows": 7}}})
    note("nn-worker-0", USED)
    assert recorded.record.counted("rows") == 13
    note("embedding-server-0", USED | {"tables": {"a": {"rows": 6}, "b": {"rows": 3}}})
    assert recorded.record.counted("rows") == 16
    interval = {"split": "train", "last": 4, "samples": 0, "steps": 4, "staleness": {}, "loss_sum": 0.0}
    recorded.record.add_report(0, 1, interval, NO_SCORES)
    assert recorded.lines[0]["rows"] == 16


def test_rows_of_dense_weights_are_not_counted_with_those_of_features(recording: Recording) -> None:
    recorded = recording(ranks=1)
    counters = {"rows": 4, "hits": 5, "misses": 5}
    recorded.record.note("embedding-server-0", USED | {"tables": {"a": counters, "(dense)": {"rows": 90, "hits": 900}}})
    interval = {"split": "eval", "last": 4, "samples": 0, "steps": 4, "staleness": {}, "loss_sum": 0.0}
    recorded.record.add_report(0, 1, interval, NO_SCORES)
    (line,) = recorded.lines
    assert (line["rows"], line["hit_rate"]) == (4, 0.5)


def test_hits_and_evictions_are_those_of_all_tables_and_servers(recording: Recording) -> None:
    recorded = recording(ranks=1)
    tables = {"a": {"hits": 5, "misses": 3, "evicted": 2}, "b": {"hits": 1, "misses": 0}}
    recorded.record.note("embedding-server-0", USED | {"tables": tables})
    recorded.record.note("embedding-server-1", USED | {"tables": {"a": {"hits": 0, "misses": 3, "evicted": 1}}})
    interval = {"split": "eval", "last": 4, "samples": 0, "steps": 4, "staleness": {}, "loss_sum": 0.0}
    recorded.record.add_report(0, 1, interval, NO_SCORES)
    (line,) = recorded.lines
    assert (line["rows"], line["hit_rate"], line["evicted"]) == (0, 0.5, 3)


def test_the_first_evictions_are_a_note_and_no_warning(recording: Recording) -> None:
    recorded = recording()
    for server, evicted in product((0, 1), (0, 2, 9)):
        recorded.record.note(f"embedding-server-{server}", USED | {"tables": {"a": {"evicted": evicted}}})
    assert recorded.told("note") == [
        {
            "text": "table a is full: the rows used longest ago make room for new ids; with a higher embedding.memory "
            "or embedding.capacity more of them stay"
        }
    ]
    assert recorded.warnings == []


def test_ids_that_are_not_admitted_are_nothing_to_tell(recording: Recording) -> None:
    recorded = recording()
    quiet = {"not_admitted": 3, "misses": 9, "admitted": 6, "gradients_missing": 4, "bytes": 5}
    recorded.record.note("embedding-server-0", USED | {"tables": {"a": quiet}})
    assert (recorded.told("note"), recorded.warnings) == ([], [])


def test_a_full_table_is_told_once(recording: Recording) -> None:
    recorded = recording()
    for server, refused in product((0, 1), (0, 2, 9)):
        recorded.record.note(f"embedding-server-{server}", USED | {"tables": {"a": {"refused": refused}}})
    assert recorded.warnings == ["table a is full and refuses new ids; raise embedding.memory or embedding.capacity"]


def test_gradients_that_are_not_finite_are_told_once(recording: Recording) -> None:
    recorded = recording()
    for refused in (0, 1, 2):
        recorded.record.note("embedding-server-0", USED | {"tables": {"a": {"gradients_refused": refused}}})
    assert recorded.warnings == ["table a was sent gradients that are not finite; those rows were not updated"]


def test_each_table_has_its_warnings_whatever_its_name(recording: Recording) -> None:
    recorded = recording()
    full = {"refused": 1, "gradients_refused": 1}
    recorded.record.note("embedding-server-0", USED | {"tables": {"ad:id": full, "ad:slot": full}})
    assert [text.split()[1] for text in recorded.warnings] == ["ad:id", "ad:id", "ad:slot", "ad:slot"]


def test_what_a_loader_changed_and_what_was_refused_is_told_once_of_each_replica(recording: Recording) -> None:
    recorded = recording()
    for name, count in product(("data-loader-0", "data-loader-1"), (0, 3, 8)):
        recorded.record.note(name, USED | {"counts": {"steps_sent": count, "truncated_sequences": count}})
        recorded.record.note(name, USED | {"messages": {"refused": count, "resent": 5}})
    assert recorded.warnings == [
        "data-loader-0 reports truncated sequences: 3 so far",
        "data-loader-0 reports refused messages: 3 so far",
        "data-loader-1 reports truncated sequences: 3 so far",
        "data-loader-1 reports refused messages: 3 so far",
    ]


@pytest.mark.parametrize(
    "figures", [{}, {"cpu_s": 1.0}, USED | {"rss": "10"}, USED | {"more": 1}, USED | {"tables": {"a": {"rows": "1"}}}]
)
def test_notes_that_are_no_figures_are_refused_and_change_nothing(
    recording: Recording, figures: dict[str, Any]
) -> None:
    recorded = recording()
    recorded.record.note("embedding-server-0", USED | {"tables": {"a": {"rows": 5}}})
    with pytest.raises(WireError, match="these are no figures"):
        recorded.record.note("embedding-server-0", figures)
    assert recorded.record.counted("rows") == 5


def test_the_roles_and_tables_of_a_job_are_summed_up(recording: Recording) -> None:
    recorded = recording()
    tables = ({"a": {"rows": 5, "refused": 0}, "b": {"rows": 2}}, {"a": {"rows": 7, "refused": 3}})
    for server, counters in enumerate(tables):
        recorded.record.note(f"embedding-server-{server}", USED | {"tables": counters, "updates": {"applied": 4}})
    recorded.record.note(
        "data-loader-0", {"cpu_s": 0.12345, "rss": 7, "counts": {"steps_sent": 9}, "messages": {"lost": 1}}
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


def test_a_figure_that_is_not_finite_does_not_cost_the_summary(recording: Recording) -> None:
    recorded = recording()
    recorded.record.note("nn-worker-0", {"cpu_s": math.nan, "rss": 7})
    recorded.record.write_roles()
    assert recorded.told("roles") == [{"roles": [{"role": "nn-worker", "index": 0, "cpu_s": None, "rss": 7}]}]
