"""When a job has not recovered as it should, a drill says so."""

from pathlib import Path
from typing import Any

import pytest

from persia_cli.drill.counting import count_updates, measure_times, messages_refused, take_from_events
from persia_cli.drill.drill import judge
from persia_cli.drill.plan import Disturbance
from persia_cli.drill.result import DrillResult, StrikeResult, UpdateCounts

KILL = Disturbance("kill", ("embedding-server-0",), 100)


def result(strike: StrikeResult | None = None, **counts: int) -> DrillResult:
    every = {"applied": 600, "twice": 0, "lost": 0, "repeated": 0} | counts
    return DrillResult(Path("run"), "hybrid", 600, [strike or StrikeResult(KILL, 100, 0.0)], UpdateCounts(**every), 0)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({}, []),
        ({"repeated": 50}, []),
        ({"twice": 2}, ["2 updates are in the model more than once"]),
        ({"lost": 1}, ["1 updates were lost"]),
    ],
)
def test_updates_twice_or_lost_are_named(counts: dict[str, int], said: list[str]):
    found = result(**counts)
    judge(found)
    assert found.problems == said
    assert found.as_object()["recovered"] is (not said)


def test_times_are_those_of_the_events_and_repeats_are_added_up():
    strike = StrikeResult(KILL, 100, 10.0)
    events: list[dict[str, Any]] = [
        {"time": 12.5, "seconds": 1.0, "cause": "a", "repeated": {"steps": 3}},
        {"time": 13.0, "seconds": 2.5, "cause": "b", "repeated": {"steps": 4}},
    ]
    take_from_events(strike, events, [{"time": 10.4}])
    assert (strike.noticed_s, strike.recovered_s) == (0.4, 3.0)
    assert strike.repeated == {"steps": 7}
    assert strike.text == "a; b"


def test_updates_are_those_that_each_server_has_counted():
    def roles(*updates: dict[str, int]) -> list[dict[str, Any]]:
        servers = [{"role": "embedding-server", "index": 0, "updates": each} for each in updates]
        return [{"event": "roles", "roles": [{"role": "nn-worker", "index": 0, "updates": {}}, *servers]}]

    assert count_updates([], 600) is None
    # The first process of a server that was killed has left no counts.
    ours = roles({}, {"applied": 600, "repeated": 2}, {"applied": 600, "repeated": 0})
    assert count_updates(ours, 600) == UpdateCounts(applied=1200, twice=0, lost=0, repeated=2)
    assert count_updates(roles({"applied": 601}, {"applied": 597}), 600) == UpdateCounts(1198, 1, 3, 0)


def test_standstill_is_the_longest_time_without_a_new_step():
    steps = [98, 99, 100, 101, 60, 61, 100, 101, 102, 103]
    seconds = [9.7, 9.8, 9.9, 10.2, 15.0, 15.1, 18.0, 18.1, 18.4, 30.0]
    lines = [{"split": "train", "step": step, "time": at} for step, at in zip(steps, seconds, strict=True)]
    strike = StrikeResult(KILL, 101, 10.3, over=10.4, recovered_s=7.0)
    measure_times(strike, lines)
    assert strike.caught_up_s == pytest.approx(8.1)
    assert strike.standstill_s == pytest.approx(8.1)
    assert strike.recovered_s == 7.0
    unsaid = StrikeResult(KILL, 101, 10.3, over=10.4)
    measure_times(unsaid, lines)
    assert unsaid.recovered_s == pytest.approx(4.7)


def test_refused_messages_are_those_of_the_last_process():
    roles = [{"role": "nn-worker", "index": 0, "messages": {"refused": n}} for n in (5, 2)]
    assert messages_refused([{"event": "roles", "roles": roles}], "nn-worker-0") == 2
    assert messages_refused([], "nn-worker-0") is None
