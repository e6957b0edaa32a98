"""The ranges of a search, which are written in Hydra's grammar, and the settings that it chooses from them."""

import math
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.errors import ConfigError
from persia_cli.sweeps.grid import choices, compose_space, every_fold, span_of
from persia_cli.sweeps.points import NumberRange, value_of

FRACTIONS = st.floats(min_value=1e-9, max_value=1e9)


def hydra(word: str) -> Any:
    """The value of an argument, as Hydra itself reads it."""
    return OverridesParser.create().parse_override(word).value()


@given(FRACTIONS, FRACTIONS, st.booleans(), st.floats(0.0, 1.0))
def test_an_interval_has_the_ends_that_hydra_reads_and_what_is_drawn_stays_within(
    one: float, other: float, log: bool, part: float
) -> None:
    low, high = min(one, other), max(one, other)
    written = f"interval({low!r}, {high!r})"
    word = f"optimizer.dense.lr={f'tag(log, {written})' if log else written}"
    if low == high:
        with pytest.raises(ConfigError):
            span_of(word)
        return
    span = span_of(word)
    assert span is not None
    read = hydra(word)
    assert (span.low, span.high, span.step, span.log) == (read.start, read.end, None, "log" in read.tags)
    drawn = min(high, low + part * (high - low))
    again = hydra(f"a={span.text(drawn)}")
    assert low <= again <= high
    assert math.isclose(again, drawn, rel_tol=1e-5)


@given(st.integers(-50, 50), st.integers(1, 40))
def test_an_interval_of_whole_numbers_has_whole_numbers(low: int, width: int) -> None:
    for written in (f"interval({low},{low + width})", f"int(interval({low}.0,{low + width}.0))"):
        span = span_of(f"seed={written}")
        assert span == NumberRange(low, low + width)
        assert span.is_whole
        assert hydra(f"seed={span.text(low + width)}") == low + width
    fractions = span_of(f"seed=interval({low}.0,{low + width})")
    assert fractions is not None
    assert not fractions.is_whole


@given(st.integers(-20, 20), st.integers(-20, 20), st.sampled_from([1, 2, 3, -1, -4, 0.25, 0.1, -0.5]))
def test_a_range_has_the_numbers_that_a_grid_of_it_lists(start: int, stop: int, step: float) -> None:
    word = f"seed=range({start},{stop},{step})"
    try:
        listed = sorted({float(f"{float(value_of(each)):.12g}") for each in choices(word)})
    except ConfigError:
        with pytest.raises(ConfigError):
            span_of(word)
        return
    span = span_of(word)
    if span is None:
        assert len(listed) == 1
        return
    assert span.step is not None
    number = round((span.high - span.low) / span.step) + 1
    drawn = [float(span.text(span.low + each * span.step)) for each in range(number)]
    assert drawn == pytest.approx(listed, abs=1e-11)


@pytest.mark.parametrize(
    "word",
    ["a=interval(2,1)", "a=interval(0,inf)", "a=interval(nan,1)", "a=tag(log,interval(0,1))", "a=tag(log,range(1,9))",
     "a=range(3,1)"],
)  # fmt: skip
def test_an_interval_without_numbers_is_refused(word: str) -> None:
    with pytest.raises(ConfigError):
        span_of(word)


def test_the_ends_and_every_choice_are_checked_and_a_key_applies_where_it_exists() -> None:
    words = ["conf=synthetic", "mode=sync,hybrid", "mode.staleness=interval(2,8)", "++model.dim=4,8,16"]
    space, runs = compose_space([*words, "optimizer.dense.lr=tag(log,interval(1e-4,1e-1))"])
    assert {each.run.model.dim for each in runs} == {4, 8, 16}
    assert {each.run.optimizer.dense.lr for each in runs} >= {1e-4, 0.1}
    values = {"mode": "sync", "mode.staleness": "3", "model.dim": "8", "optimizer.dense.lr": "0.002"}
    sync, hybrid = space.point(values), space.point(values | {"mode": "hybrid"})
    assert "mode.staleness=3" not in sync.arguments
    assert {"mode.staleness=3", "++model.dim=8", "optimizer.dense.lr=0.002"} <= set(hybrid.arguments)
    with pytest.raises(ConfigError, match="whole number"):
        compose_space(["conf=synthetic", "model.dim=interval(1.0,9.0)"])
    with pytest.raises(ConfigError, match="seed cannot be searched"):
        compose_space(["conf=synthetic", "seed=range(0,9)", "model.dim=4,8"])


def test_every_fold_of_a_split_is_a_point() -> None:
    split = ["dataset=parquet", "dataset.path=x.parquet", "dataset.labels=[y]", "dataset.dense=[a]"]
    split += ["dataset.split={kind: every, n: 3}"]
    folds = (*split, "dataset.split.offset=range(0,3)")
    assert every_fold(split) == every_fold(folds) == folds
    assert every_fold([*split, "dataset.split.offset=2,0,1"]) == folds
    for wrong in ([*split, "dataset.split.offset=range(0,2)"], ["conf=synthetic"]):
        with pytest.raises(ConfigError, match="--folds"):
            every_fold(wrong)
