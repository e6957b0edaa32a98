"""The points of a sweep, and the baseline of each."""

import pytest

from persia_cli.errors import ConfigError
from persia_cli.sweep.points import (
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
