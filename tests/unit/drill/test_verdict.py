"""When a job has not recovered as it should, a drill says so."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from persia_cli.drill.account import ENTRY
from persia_cli.drill.counting import measure_times, messages_refused, take_from_events
from persia_cli.drill.drill import judge
from persia_cli.drill.plan import Disturbance
from persia_cli.drill.result import DrillResult, StrikeResult, UpdateCounts
from persia_cli.roles.update_account import APPLIED

KILL = Disturbance("kill", ("embedding-server-0",), 100)


def result(strike: StrikeResult | None = None, **counts: int) -> DrillResult:
    every = {"applied": 600, "twice": 0, "lost": 0, "taken_back": 0, "steps_again": 0} | counts
    return DrillResult(
        Path("run"), "hybrid", 600, [strike or StrikeResult(KILL, 100, 0.0)], UpdateCounts(**every), 0, 0
    )


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({}, []),
        ({"taken_back": 50}, []),
        ({"twice": 2}, ["2 updates are in the model more than once"]),
        ({"lost": 1}, ["1 updates were lost"]),
        ({"left_out": 9}, ["the counts are not whole: 9 entries had no room in the accounts"]),
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


def test_standstill_is_the_longest_time_without_a_new_step():
    steps = [98, 99, 100, 101, 60, 61, 100, 101, 102, 103]
    seconds = [9.7, 9.8, 9.9, 10.2, 15.0, 15.1, 18.0, 18.1, 18.4, 30.0]
    entries = np.zeros(len(steps), ENTRY)
    entries["kind"], entries["step"], entries["ns"] = APPLIED, steps, [round(at * 1e9) for at in seconds]
    strike = StrikeResult(KILL, 101, 10.3, over=10.4, recovered_s=7.0)
    measure_times(strike, {"embedding-server-0": (entries, 0)})
    assert strike.caught_up_s == pytest.approx(8.1)
    assert strike.standstill_s == pytest.approx(8.1)
    assert strike.recovered_s == 7.0


def test_refused_messages_are_those_of_the_last_process():
    roles = [{"role": "nn-worker", "index": 0, "messages": {"refused": n}} for n in (5, 2)]
    assert messages_refused([{"event": "roles", "roles": roles}], "nn-worker-0") == 2
    assert messages_refused([], "nn-worker-0") is None
