"""Settings of a sweep compared over seeds."""

import numpy as np
import pytest

from persia_cli.observe.comparison import Mean, compare, mean_of, paired_auc
from persia_cli.observe.outcome import Figures
from persia_cli.plan.grid import Setting

SYNC: Setting = (("mode", "sync"),)
HYBRID: Setting = (("mode", "hybrid"),)


def figures(auc: float | None, rate: float = 100.0, steps: int = 50, staleness: int = 1) -> Figures:
    return Figures(rate, auc, 0.5, steps, staleness)


def test_mean_and_standard_error() -> None:
    values = [0.7, 0.8, 0.75, 0.9]
    assert mean_of(values) == Mean(
        pytest.approx(np.mean(values)), pytest.approx(np.std(values, ddof=1) / np.sqrt(4)), 4
    )
    assert mean_of([0.5]) == Mean(0.5, None, 1)
    assert mean_of([]) is None


def test_differences_are_taken_seed_by_seed_where_both_have_finished() -> None:
    ours = {"1": figures(0.71), "2": figures(0.82), "3": figures(0.90), "5": figures(None)}
    theirs = {"1": figures(0.70), "2": figures(0.80), "4": figures(0.10), "5": figures(0.5)}
    difference = paired_auc(ours, theirs)
    assert difference == Mean(pytest.approx(0.015), pytest.approx(0.005), 2)
    assert paired_auc(ours, {"9": figures(0.5)}) is None


def test_rows_carry_differences_bounds_and_failures() -> None:
    sync = {"1": figures(0.70), "2": figures(0.80)}
    hybrid = {"1": figures(0.69, 300.0, staleness=3), "2": figures(0.78, 500.0, staleness=4)}
    first, second = compare({SYNC: sync, HYBRID: hybrid}, {HYBRID: 1}, {SYNC: SYNC, HYBRID: SYNC})
    assert (first.setting, first.baseline, first.difference, first.failed) == (SYNC, None, None, 0)
    assert first.auc == Mean(pytest.approx(0.75), pytest.approx(0.05), 2)
    assert (second.baseline, second.failed, second.finished) == (SYNC, 1, 2)
    assert second.samples_per_s == Mean(pytest.approx(400.0), pytest.approx(100.0), 2)
    assert (second.staleness_max, second.staleness_share) == (4, 0.08)
    assert second.difference is not None
    assert second.difference.auc == Mean(pytest.approx(-0.015), pytest.approx(0.005), 2)
    assert second.difference.bound == pytest.approx(0.015 + 2 * 0.005)


def test_nothing_finished_and_no_baseline() -> None:
    [row] = compare({HYBRID: {}}, {HYBRID: 2}, {})
    assert (row.finished, row.failed, row.auc, row.steps, row.difference) == (0, 2, None, None, None)
    [alone] = compare({HYBRID: {"1": figures(0.6)}}, {}, {})
    assert alone.auc == Mean(0.6, None, 1)
    [_, lone] = compare({SYNC: {"1": figures(0.6)}, HYBRID: {"1": figures(0.7)}}, {}, {HYBRID: SYNC})
    assert lone.difference is not None
    assert lone.difference.bound is None
