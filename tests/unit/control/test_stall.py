"""A job moves while any replica's figures change."""

from persia_cli.control.stall import StallDetector


def test_figures_that_change_are_movement_and_figures_that_stay_are_none() -> None:
    detector = StallDetector()
    detector.note("a", {"steps": 1}, now=10.0)
    detector.note("b", {"steps": 1}, now=11.0)
    assert detector.still_s(12.0) == 1.0
    detector.note("a", {"steps": 1}, now=20.0)
    detector.note("b", {"steps": 1}, now=21.0)
    assert detector.still_s(22.0) == 11.0
    detector.note("a", {"steps": 2}, now=23.0)
    assert detector.still_s(24.0) == 1.0


def test_a_new_phase_is_movement() -> None:
    detector = StallDetector()
    detector.note("a", {}, now=1.0)
    detector.restart(5.0)
    assert detector.still_s(6.0) == 1.0
