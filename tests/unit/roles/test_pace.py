"""Progress is reported every few seconds, with the remaining time."""

from persia_cli.roles.coordinator.reporting import EVERY_S, Pace


def test_progress_is_reported_at_intervals() -> None:
    pace = Pace(1000, now=50.0)
    assert pace.line(10, 50.0 + EVERY_S / 2) is None
    assert pace.line(100, 54.0) == {"rows": 100, "of": 1000, "rows_per_s": 25.0, "eta_s": 36}
    assert pace.line(110, 54.0 + EVERY_S / 2) is None
    assert pace.line(1000, 60.0) == {"rows": 1000, "of": 1000, "rows_per_s": 100.0, "eta_s": 0}


def test_before_the_first_row_the_remaining_time_is_unknown() -> None:
    assert Pace(1000, now=0.0).line(0, 5.0) == {"rows": 0, "of": 1000, "rows_per_s": 0.0, "eta_s": None}
