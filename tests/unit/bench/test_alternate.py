"""Alternating timing, by a clock that only the calls move."""

import pytest

from scripts.bench.alternate import Timing, Turn, alternate


class FakeClock:
    """A clock that stands still but for what calls take."""

    def __init__(self) -> None:
        self.now = 0.0
        self.called: list[str] = []

    def __call__(self) -> float:
        return self.now

    def call(self, name: str, *seconds: float):
        """Return a function that takes some seconds when called, the last of them from then on."""
        left = list(seconds)

        def run() -> None:
            self.called.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_order_is_reversed_each_round() -> None:
    clock = FakeClock()
    turns = {name: Turn(clock.call(name, 1.0), loops=1) for name in "abc"}
    alternate(turns, rounds=3, clock=clock)
    assert "".join(clock.called) == "abc" + "cba" + "abc"


def test_seconds_per_call_of_all_rounds() -> None:
    clock = FakeClock()
    timed = alternate({"one": Turn(clock.call("one", 5.0, 1.0, 2.0, 9.0), loops=1)}, rounds=4, clock=clock)
    assert timed["one"] == Timing(median=3.5, least=1.0, most=9.0, loops=1)


def test_as_many_calls_as_fill_the_time_judged_by_the_second() -> None:
    clock = FakeClock()
    timed = alternate({"fast": clock.call("fast", 3.0, 0.01)}, rounds=2, at_least=0.05, clock=clock)
    assert timed["fast"].loops == 5
    assert timed["fast"].median == pytest.approx(0.01)
    assert len(clock.called) == 2 + 2 * 5


def test_slow_calls_run_once_a_round() -> None:
    clock = FakeClock()
    assert alternate({"slow": clock.call("slow", 1.0)}, rounds=2, clock=clock)["slow"].loops == 1


def test_preparing_is_not_timed() -> None:
    clock = FakeClock()
    turn = Turn(clock.call("run", 1.0), prepare=clock.call("prepare", 100.0), loops=2)
    assert alternate({"turn": turn}, rounds=2, clock=clock)["turn"].most == 1.0
    assert clock.called == ["prepare", "run", "run"] * 2


def test_no_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        alternate({}, rounds=0)
