"""Rates during saves and between them, from the lines that a run leaves."""

from typing import Any

import pytest

from persia_cli.errors import PersiaError
from scripts.bench.saving import NO_SAVE, Save, compare_rates, saves_of


def lines(rates: list[float]) -> list[dict[str, Any]]:
    """Lines of ten steps and 100 samples each, one after the other from second 1000 on, at so many samples/s."""
    told = [{"step": 0, "samples": 0, "time": 1000.0, "samples_per_s": 1.0}]
    for number, rate in enumerate(rates, 1):
        time = told[-1]["time"] + 100 / rate
        told.append({"step": 10 * number, "samples": 100 * number, "time": time, "samples_per_s": rate})
    return told


def test_lines_count_by_what_was_saved_meanwhile() -> None:
    """20 steps warm up; each save begins with the next 50 and ends in the middle of a line."""
    told = lines([1.0, 1.0, 50.0, 25.0, 50.0, 100.0, 100.0, 80.0, 50.0, 100.0, 100.0, 100.0])
    begun = [told[2]["time"], told[7]["time"]]
    saves = [Save(begun[0], begun[0] + 2.0 + 4.0 + 1.9, 1), Save(begun[1], begun[1] + 1.25 + 0.2, 1)]
    with pytest.raises(PersiaError, match=r"save 1 took all the time.*measure more steps"):
        compare_rates(told[:6], saves[:1], 20)
    ours, alone = compare_rates([{**line, "step": line["step"] + 30} for line in told], saves, 50)
    assert (ours.name, alone.name) == ("persia", NO_SAVE)
    # The first save: 300 samples in 2 + 4 + 2 s. Of the second, the line that it ends in is neither.
    assert (ours.least, ours.most) == (pytest.approx(300 / 8), pytest.approx(80.0))
    assert (alone.least, alone.most) == (pytest.approx(100.0), pytest.approx(100.0))
    assert ours.ratios == {NO_SAVE: pytest.approx((37.5 + 80.0) / 2 / 100.0)}


def test_saves_too_short_to_be_seen_are_not_compared() -> None:
    told = lines([10.0] * 8)
    with pytest.raises(PersiaError, match=r"save 1 took less than half an interval; measure fewer steps"):
        compare_rates(told, [Save(told[4]["time"], told[4]["time"] + 1.0, 1)], 40)


def test_a_save_begins_with_its_phase_and_is_over_when_it_is_published() -> None:
    events = [
        {"event": "phase", "phase": "training", "step": 0, "time": 1.0},
        {"event": "phase", "phase": "saving", "step": 8, "time": 2.0},
        {"event": "phase", "phase": "training", "step": 8, "time": 2.5},
        {"event": "saved", "step": 8, "nbytes": 77, "time": 4.0},
        {"event": "phase", "phase": "saving", "step": 16, "time": 5.0},
    ]
    assert saves_of(events) == [Save(2.0, 4.0, 77)]
