"""Time in which nobody watched counts for nothing."""

from persia_cli.control.membership import LONGEST_GAP_S, RunningClock


def test_time_goes_on_while_it_is_looked_at_and_stands_still_while_nobody_does() -> None:
    awake = RunningClock(100.0)
    assert awake.at(100.0) == 0.0
    assert awake.at(100.5) == 0.5
    assert awake.at(100.5 + LONGEST_GAP_S) == 0.5 + LONGEST_GAP_S
    stopped = awake.at(5000.0)
    assert stopped == 0.5 + 2 * LONGEST_GAP_S
    assert awake.at(5000.25) == stopped + 0.25
