"""Clocks of replicas are compared by requests and answers, and progress is reported every few seconds."""

from persia_cli.control.evaluation_tracker import Best
from persia_cli.roles import recording
from persia_cli.roles.coordinator.record import EVERY_S, Pace, standstill
from persia_cli.roles.recording import ClockComparison


def test_the_quickest_answer_counts() -> None:
    clocks = ClockComparison()
    assert clocks.best == (0, None)
    clocks.add(1_000, 501_500, 3_000)
    assert clocks.best == (499_500, 1_000)
    clocks.add(5_000, 505_200, 5_400)
    clocks.add(6_000, 590_000, 26_000)
    assert clocks.best == (500_000, 200)
    for at in range(recording.COMPARED):
        clocks.add(at, at + 7_000, at + 1_000)
    assert clocks.best == (6_500, 500), "older comparisons do not apply to clocks that drift"


def test_progress_is_reported_at_intervals() -> None:
    pace = Pace(1000, now=50.0)
    assert pace.line(10, 50.0 + EVERY_S / 2) is None
    assert pace.line(100, 54.0) == {"rows": 100, "of": 1000, "rows_per_s": 25.0, "eta_s": 36}
    assert pace.line(110, 54.0 + EVERY_S / 2) is None
    assert pace.line(1000, 60.0) == {"rows": 1000, "of": 1000, "rows_per_s": 100.0, "eta_s": 0}


def test_before_the_first_row_the_remaining_time_is_unknown() -> None:
    assert Pace(1000, now=0.0).line(0, 5.0) == {"rows": 0, "of": 1000, "rows_per_s": 0.0, "eta_s": None}


def test_the_reason_for_an_early_end_names_what_was_asked_for() -> None:
    best = Best("auc", "high", 0.001)
    best.add(5, None)
    assert standstill(best) == "auc was not defined in 1 evaluation"
    best.add(10, 0.75)
    best.add(15, 0.7505)
    assert standstill(best) == "auc has not improved by more than 0.001 over 0.75 of step 10 in 1 evaluation"
