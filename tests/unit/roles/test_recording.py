"""A replica sends its recording to the coordinator in portions, and clocks are compared by requests and answers."""

from persia_cli.roles import recording
from persia_cli.roles.recording import ClockComparison


def test_the_quickest_answer_counts() -> None:
    clocks = ClockComparison()
    assert clocks.best == (0, None)
    clocks.note(1_000, 501_500, 3_000)
    assert clocks.best == (499_500, 1_000)
    clocks.note(5_000, 505_200, 5_400)
    clocks.note(6_000, 590_000, 26_000)
    assert clocks.best == (500_000, 200)
    for at in range(recording.COMPARED):
        clocks.note(at, at + 7_000, at + 1_000)
    assert clocks.best == (6_500, 500), "older comparisons do not apply to clocks that drift"
