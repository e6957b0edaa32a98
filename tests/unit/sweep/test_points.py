"""The points of a sweep, and the baseline of each."""

import pytest

from persia_cli.errors import ConfigError
from persia_cli.sweep.points import (
    Axis,
    Point,
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


def test_every_combination_is_a_point_and_the_last_key_changes_fastest() -> None:
    points = combine(AXES)
    assert [point.arguments for point in points] == [
        ("conf=synthetic", "mode.staleness=1", "++seed=1"),
        ("conf=synthetic", "mode.staleness=1", "++seed=2"),
        ("conf=synthetic", "mode.staleness=4", "++seed=1"),
        ("conf=synthetic", "mode.staleness=4", "++seed=2"),
    ]
    assert points[1].swept == (("mode.staleness", "1"), ("seed", "2"))
    assert points[1].label == "mode.staleness=1 seed=2"


def test_seeds_repeat_a_setting() -> None:
    points = combine(AXES)
    assert settings_of(points) == [(("mode.staleness", "1"),), (("mode.staleness", "4"),)]
    assert name_setting(points[0].setting) == "mode.staleness=1"
    assert short_name((("mode", "hybrid"), ("mode.staleness", "3"))) == "hybrid, staleness 3"


def test_a_point_without_a_key() -> None:
    assert combine(AXES)[3].without("mode.staleness") == Point(("conf=synthetic", "++seed=2"), (("seed", "2"),))


def test_nothing_swept_is_one_point() -> None:
    [point] = combine([Axis("conf", ("conf=synthetic",))])
    assert (point.swept, point.label, name_setting(point.setting)) == ((), "conf=synthetic", "all")
    assert combine([]) == [Point((), ())]


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
        (
            "mode=async",
            "--baseline 'mode=async' .*: mode=sync; mode=hybrid mode.stal",
        ),
        ("", "--baseline '' "),
        ("mode=hybrid", "--baseline 'mode=hybrid' .* mode=sync"),
    ],
)
def test_a_baseline_that_is_no_single_point_is_refused(baseline: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        baselines([SYNC, HYBRID_3, HYBRID_8], baseline)
