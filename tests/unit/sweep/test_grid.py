"""Arguments with lists of values: commas that make points, and reports of mistakes."""

import re
import tracemalloc

import pytest

from persia_cli.errors import ConfigError
from persia_cli.sweep.grid import choices, compose_grid


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("seed=1", ["1"]),
        ("seed=1,2,3", ["1", "2", "3"]),
        ("seed=range(0,3)", ["0", "1", "2"]),
        ("seed=range(5,0,-2)", ["5", "3", "1"]),
        ("train.stop_early.min_delta=range(0,1,0.25)", ["0.0", "0.25", "0.5", "0.75"]),
        ("seed=choice(4,7)", ["4", "7"]),
        ("mode=sync,hybrid", ["sync", "hybrid"]),
        ("model.hidden=[16,8]", ["[16,8]"]),
        ("model.hidden=[16,8],[4]", ["[16,8]", "[4]"]),
        ("dataset.split={kind: every, n: 5}", ["{kind: every, n: 5}"]),
        ("mode={kind: sync},{kind: hybrid, staleness: 2}", ["{kind:sync}", "{kind:hybrid,staleness:2}"]),
        ("dataset.path='a,b'", ["'a,b'"]),
        ("dataset.path='a,b',c", ["'a,b'", "c"]),
        ("optimizer.dense.lr=1e-3,0.01", ["0.001", "0.01"]),
        ("train.steps=null,5", ["null", "5"]),
        ("++seed=1,2", ["1", "2"]),
        ("conf=criteo,synthetic", ["criteo", "synthetic"]),
        ("dataset.path=/a b,c", ["/a\\ b", "c"]),
    ],
)
def test_commas_separate_values_outside_of_brackets_and_quotes(word: str, values: list[str]) -> None:
    key = word.partition("=")[0]
    assert choices(word) == [f"{key}={value}" for value in values]


@pytest.mark.parametrize("word", ["seed=interval(1,5)", "conf=glob(*)", "seed=range(1,4),7"])
def test_a_sweep_without_a_list_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="a sweep needs a list of its values"):
        choices(word)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("seed=range(0,1000000000)", "this range has 1,000,000,000 values; a sweep has at most 10,000 points"),
        ("seed=sort(range(0,1000000000))", "this range has 1,000,000,000 values"),
        ("model.dim=range(0,1,1e-9)", "this range has 1,000,000,000 values"),
        ("seed=range(1,1e300)", "a sweep has at most 10,000 points"),
        ("seed=range(5,0)", "seed=range(5,0): this range is empty: by steps of 1 there is nothing from 5 to 0"),
        ("seed=range(3.0,3.0)", "this range is empty"),
        ("seed=range(0,3,0)", "the step of this range is 0, so it never ends"),
        ("seed=range(0.0,3.0,0)", "the step of this range is 0"),
        ("seed=range(0,inf)", "a range needs finite ends"),
        ("seed=range(0,nan)", "a range needs finite ends"),
        ("seed=shuffle(range(0,1000000000))", "a sweep has at most 10,000 points"),
        ("seed=shuffle(1,2,3)", "their order does not matter"),
    ],
)
def test_ranges_are_counted_before_they_are_listed(word: str, sentence: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            choices(word)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_products_are_counted_before_they_are_listed() -> None:
    words = [
        f"{key}=range(0,100)"
        for key in ("seed", "model.dim", "train.batch_size", "train.epochs", "train.log_every_steps")
    ]
    with pytest.raises(ConfigError, match="these values make 10,000,000,000 points; a sweep has at most 10,000"):
        compose_grid(words)


def test_the_runs_of_a_grid() -> None:
    grid = compose_grid(["conf=synthetic", "mode.staleness=1,4", "model.hidden=[16,8],[4]", "seed=7"])
    assert [(each.run.mode.staleness, each.run.model.hidden, each.run.seed) for each in grid] == [
        (1, (16, 8), 7),
        (1, (4,), 7),
        (4, (16, 8), 7),
        (4, (4,), 7),
    ]
    assert grid[0].point.swept == (("mode.staleness", "1"), ("model.hidden", "[16,8]"))


def test_points_do_not_share_a_folder_of_checkpoints() -> None:
    with pytest.raises(ConfigError) as failure:
        compose_grid(["conf=synthetic", "checkpoint.path=/saved", "seed=1,2"])
    assert str(failure.value) == (
        "checkpoint.path=/saved: points of a sweep cannot share a folder of checkpoints; give checkpoint.path=null, "
        "and each has its own in its run directory"
    )
    apart = compose_grid(["conf=synthetic", "checkpoint.path=/one,/two"])
    assert [each.run.checkpoint.path for each in apart] == ["/one", "/two"]
    inside = compose_grid(["conf=synthetic", "checkpoint.path=null", "seed=1,2"])
    assert [each.run.checkpoint.path for each in inside] == [None, None]


def test_a_key_of_one_mode_makes_no_points_of_the_others() -> None:
    grid = compose_grid(["conf=synthetic", "mode=sync,hybrid", "mode.staleness=3,8", "seed=1,2"])
    assert [each.point.label for each in grid] == [
        "mode=sync seed=1",
        "mode=sync seed=2",
        "mode=hybrid mode.staleness=3 seed=1",
        "mode=hybrid mode.staleness=3 seed=2",
        "mode=hybrid mode.staleness=8 seed=1",
        "mode=hybrid mode.staleness=8 seed=2",
    ]
    assert [each.run.mode.kind for each in grid] == ["sync"] * 2 + ["hybrid"] * 4
    one = compose_grid(["mode=sync,hybrid", "mode.staleness=8"])
    assert [each.run.mode.model_dump() for each in one] == [{"kind": "sync"}, {"kind": "hybrid", "staleness": 8}]


def test_all_mistakes_are_reported_with_their_points() -> None:
    with pytest.raises(ConfigError) as failure:
        compose_grid(["conf=synthetic", "mode.staleness=0,3", "train.batch_size=8,x", "eval.every=5"])
    assert str(failure.value).splitlines() == [
        "mode.staleness=0: staleness counts the step in flight itself, so it is at least 1 (1 with one rank is sync) "
        "(point mode.staleness=0 train.batch_size=8 and 1 more point)",
        "eval.every=5: no such key; did you mean eval.every_steps (a whole number above 0 or null)?",
        "train.batch_size=x: expected a whole number above 0 (point mode.staleness=0 train.batch_size=x and 1 more "
        "point)",
    ]


def test_a_swept_key_is_given_once() -> None:
    with pytest.raises(ConfigError, match="seed is swept and given a second time"):
        compose_grid(["seed=1,2", "seed=3"])
