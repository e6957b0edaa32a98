"""Time that passes between calls only counts while the process is awake."""

from persia_cli.control.membership import LONGEST_GAP_S, RunningClock


def test_time_passes_only_while_it_is_read() -> None:
    awake = RunningClock(100.0)
    assert awake.at(100.0) == 0.0
    assert awake.at(100.5) == 0.5
    assert awake.at(100.5 + LONGEST_GAP_S) == 0.5 + LONGEST_GAP_S
    stopped = awake.at(5000.0)
    assert stopped == 0.5 + 2 * LONGEST_GAP_S
    assert awake.at(5000.25) == stopped + 0.25
