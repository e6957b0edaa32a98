"""The points of a sweep, the baseline of each, and settings compared over seeds."""

import pytest

from persia_cli.errors import ConfigError
from persia_cli.observe.outcome import JobMetrics
from persia_cli.sweeps.comparison import Mean, compare, half_width, paired
from persia_cli.sweeps.points import (
    Axis,
    Setting,
    baselines,
    combine,
    default_baseline,
    name_setting,
    settings_of,
    short_name,
)

SYNC: Setting = (("mode", "sync"),)
HYBRID_3: Setting = (("mode", "hybrid"), ("mode.staleness", "3"))
HYBRID_8: Setting = (("mode", "hybrid"), ("mode.staleness", "8"))
AXES = [
    Axis("conf", ("conf=synthetic",)),
    Axis("mode.staleness", ("mode.staleness=1", "mode.staleness=4")),
    Axis("seed", ("++seed=1", "++seed=2")),
]


def test_seeds_repeat_a_setting() -> None:
    points = combine(AXES)
    assert settings_of(points) == [(("mode.staleness", "1"),), (("mode.staleness", "4"),)]
    assert name_setting(points[0].setting) == "mode.staleness=1"
    assert short_name((("mode", "hybrid"), ("mode.staleness", "3"))) == "hybrid, staleness 3"


def test_the_baseline_is_sync_or_else_the_least_staleness() -> None:
    assert default_baseline([HYBRID_3, SYNC]) == "mode=sync"
    assert default_baseline([(("mode.staleness", each),) for each in ("16", "2", "4")]) == "mode.staleness=2"
    assert default_baseline([(("model.dim", "2"),), (("model.dim", "4"),)]) is None
    assert default_baseline([SYNC]) is None


def test_each_setting_is_compared_with_the_same_one_in_the_baseline() -> None:
    assert baselines([SYNC, HYBRID_3, HYBRID_8], "mode=sync") == {SYNC: SYNC, HYBRID_3: SYNC, HYBRID_8: SYNC}
    assert baselines([SYNC, HYBRID_3, HYBRID_8], "mode=hybrid mode.staleness=3")[SYNC] == HYBRID_3

    def wide(setting: Setting, dim: str) -> Setting:
        return (("model.dim", dim), *setting)

    found = baselines([wide(each, dim) for dim in ("4", "8") for each in (SYNC, HYBRID_3)], "mode=sync")
    assert found[wide(HYBRID_3, "8")] == wide(SYNC, "8")
    assert found[wide(HYBRID_3, "4")] == wide(SYNC, "4")


@pytest.mark.parametrize(
    ("baseline", "sentence"),
    [
        ("mode=async", "--baseline 'mode=async' .*: mode=sync; mode=hybrid mode.stal"),
        ("", "--baseline '' "),
        ("mode=hybrid", "--baseline 'mode=hybrid' .* mode=sync"),
    ],
)
def test_a_baseline_that_is_no_single_point_is_refused(baseline: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        baselines([SYNC, HYBRID_3, HYBRID_8], baseline)


METRICS = ["auc", "log_loss"]
SYNC: Setting = (("mode", "sync"),)
HYBRID: Setting = (("mode", "hybrid"),)


def figures(auc: float | None, rate: float = 100.0, staleness: int = 1) -> JobMetrics:
    return JobMetrics(rate, {"auc": auc, "log_loss": 0.5}, 50, 50, staleness)


def test_differences_are_taken_seed_by_seed_where_both_have_finished() -> None:
    ours = {"1": figures(0.71), "2": figures(0.82), "3": figures(0.90), "5": figures(None)}
    theirs = {"1": figures(0.70), "2": figures(0.80), "4": figures(0.10), "5": figures(0.5)}
    difference = paired(ours, theirs, "auc")
    assert difference == Mean(pytest.approx(0.015), pytest.approx(0.005), 2)
    assert paired(ours, {"9": figures(0.5)}, "auc") is None


def test_rows_carry_differences_bounds_and_failures() -> None:
    sync = {"1": figures(0.70), "2": figures(0.80)}
    hybrid = {"1": figures(0.69, 300.0, staleness=3), "2": figures(0.78, 500.0, staleness=4)}
    first, second = compare({SYNC: sync, HYBRID: hybrid}, {HYBRID: 1}, {SYNC: SYNC, HYBRID: SYNC}, METRICS)
    assert (first.setting, first.baseline, first.difference, first.failed) == (SYNC, None, None, 0)
    assert first.main_metric == Mean(pytest.approx(0.75), pytest.approx(0.05), 2)
    assert (second.baseline, second.failed, second.finished) == (SYNC, 1, 2)
    assert second.samples_per_s == Mean(pytest.approx(400.0), pytest.approx(100.0), 2)
    assert (second.staleness_max, second.staleness_fraction) == (4, 0.08)
    assert second.difference == Mean(pytest.approx(-0.015), pytest.approx(0.005), 2)
    assert second.difference.margin == pytest.approx(12.7062 * 0.005, rel=1e-5)
    assert second.difference.is_not_zero is False
    assert (second.judged_steps, list(second.quality)) == ((50,), ["auc", "log_loss"])


def test_nothing_finished_and_no_baseline() -> None:
    [row] = compare({HYBRID: {}}, {HYBRID: 2}, {}, METRICS)
    assert (row.finished, row.failed, row.main_metric, row.steps, row.difference) == (0, 2, None, None, None)
    [alone] = compare({HYBRID: {"1": figures(0.6)}}, {}, {}, METRICS)
    assert alone.main_metric == Mean(0.6, None, 1)
    [_, lone] = compare({SYNC: {"1": figures(0.6)}, HYBRID: {"1": figures(0.7)}}, {}, {HYBRID: SYNC}, METRICS)
    assert (lone.difference.margin, lone.difference.is_not_zero) == (None, None)


PUBLISHED = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 19: 2.093, 30: 2.042, 120: 1.980}
"""Quantile 0.975 by degrees of freedom, as tables have it to three digits."""


@pytest.mark.parametrize("freedom", PUBLISHED)
def test_the_published_quantiles(freedom: int) -> None:
    assert half_width(freedom + 1) == pytest.approx(PUBLISHED[freedom], abs=5e-4)
