"""The measurements and problems of a drill."""

from pathlib import Path
from typing import Any

import pytest

from persia_cli.drill.result import DrillResult


def result() -> DrillResult:
    return DrillResult(("embedding-server-0",), Path("run"), "hybrid", step=101, at=10.0)


def roles(*updates: dict[str, int]) -> list[dict[str, Any]]:
    servers = [{"role": "embedding-server", "index": 0, "updates": each} for each in updates]
    return [{"event": "roles", "roles": [{"role": "nn-worker", "index": 0, "updates": {}}, *servers]}]


@pytest.mark.parametrize(
    ("applied", "counts", "problems"),
    [
        ([600, 600], (1200, 0, 0), []),
        ([601, 597], (1198, 1, 3), ["1 updates are in the model more than once", "3 updates were lost"]),
    ],
)
def test_updates_twice_or_lost_are_problems(applied: list[int], counts: tuple[int, ...], problems: list[str]):
    found = result()
    # The first process of a server that was killed has left no counts.
    found.take_updates(roles({}, *({"applied": each, "repeated": 1} for each in applied)), 600)
    assert (found.updates_applied, found.updates_applied_twice, found.updates_lost) == counts
    assert found.repeats_refused == 2
    assert found.problems == problems
    assert found.as_object()["recovered"] is (not problems)


def recovered(at: float, seconds: float, cause: str, **more: Any) -> dict[str, Any]:
    event = {"event": "recovered", "time": at, "seconds": seconds, "cause": cause, "replica": "embedding-server-0"}
    return event | more


def test_times_are_those_of_the_events_and_repeats_are_added_up():
    found = result()
    before, died = recovered(9.0, 1.0, "x"), {"event": "died", "time": 10.4}
    again = [recovered(12.5, 1.0, "a", repeated={"steps": 3}), recovered(13.0, 2.5, "b", repeated={"steps": 4})]
    found.take_recovery([before, died, *again], 32)
    assert (found.noticed_s, found.recovered_s, found.cause) == (0.4, 3.0, "a; b")
    assert (found.repeated, found.samples_repeated) == ({"steps": 7}, 0)
    assert found.problems == []


def test_steps_repeated_after_a_rollback_are_repeated_samples():
    found = result()
    found.take_recovery([recovered(13.0, 1.0, "a", checkpoint="step-60", repeated={"steps": 40}, replica="x")], 32)
    assert found.samples_repeated == 40 * 32
    assert found.problems == []


def test_a_death_without_a_recovery_is_a_problem():
    found = result()
    found.take_recovery([], 32)
    assert found.problems == ["the job ended and recorded no recovery of embedding-server-0"]


def test_standstill_is_the_longest_time_without_a_new_step():
    steps = [98, 99, 100, 101, 60, 61, 100, 101, 102, 103]
    seconds = [9.7, 9.8, 9.9, 10.2, 15.0, 15.1, 18.0, 18.1, 18.4, 30.0]
    found = DrillResult(("embedding-server-0",), Path("run"), "sync", step=101, at=10.3, recovered_s=7.0)
    found.take_standstill({"step": step, "time": at} for step, at in zip(steps, seconds, strict=True))
    assert found.standstill_s == pytest.approx(8.1)
