"""Arguments with lists of values: commas that make points, and reports of mistakes."""

import re
import tracemalloc

import pytest

from persia_cli.errors import ConfigError
from persia_cli.sweeps.grid import choices, compose_grid


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("seed=1,2,3", ["1", "2", "3"]),
        ("seed=range(5,0,-2)", ["5", "3", "1"]),
        ("train.stop_early.min_delta=range(0,1,0.25)", ["0.0", "0.25", "0.5", "0.75"]),
        ("seed=choice(4,7)", ["4", "7"]),
        ("model.hidden=[16,8],[4]", ["[16,8]", "[4]"]),
        ("mode={kind: sync},{kind: hybrid, staleness: 2}", ["{kind:sync}", "{kind:hybrid,staleness:2}"]),
        ("dataset.path='a,b',c", ["'a,b'", "c"]),
        ("optimizer.dense.lr=1e-3,0.01", ["0.001", "0.01"]),
        ("++seed=1,2", ["1", "2"]),
        ("dataset.path=/a b,c", ["/a\\ b", "c"]),
    ],
)
def test_commas_separate_values_outside_of_brackets_and_quotes(word: str, values: list[str]) -> None:
    key = word.partition("=")[0]
    assert choices(word) == [f"{key}={value}" for value in values]


@pytest.mark.parametrize("word", ["conf=glob(*)", "seed=range(1,4),7"])
def test_a_sweep_without_a_list_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="a sweep needs a list of its values"):
        choices(word)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("seed=range(0,1000000000)", "this range has 1,000,000,000 values"),
        ("model.dim=range(0,1,1e-9)", "this range has 1,000,000,000 values"),
        ("seed=range(1,1e300)", "a sweep has at most 10,000 points"),
        ("seed=range(5,0)", "seed=range(5,0): this range is empty"),
        ("seed=range(0,3,0)", "the step of this range is 0"),
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
    with pytest.raises(ConfigError, match="points of a sweep cannot share a folder"):
        compose_grid(["conf=synthetic", "checkpoint.path=/saved", "seed=1,2"])
    apart = compose_grid(["conf=synthetic", "checkpoint.path=/one,/two"])
    assert [each.run.checkpoint.path for each in apart] == ["/one", "/two"]
    inside = compose_grid(["conf=synthetic", "checkpoint.path=null", "seed=1,2"])
    assert [each.run.checkpoint.path for each in inside] == [None, None]


def test_a_key_of_one_mode_makes_no_points_of_the_others() -> None:
    grid = compose_grid(["conf=synthetic", "mode=sync,hybrid", "mode.staleness=3,8"])
    labels = ["mode=sync", "mode=hybrid mode.staleness=3", "mode=hybrid mode.staleness=8"]
    assert [each.point.label for each in grid] == labels
    modes = [each.run.mode.model_dump() for each in grid]
    assert modes == [{"kind": "sync"}, {"kind": "hybrid", "staleness": 3}, {"kind": "hybrid", "staleness": 8}]


def test_all_mistakes_are_reported_with_their_points() -> None:
    with pytest.raises(ConfigError) as failure:
        compose_grid(["conf=synthetic", "mode.staleness=0,3", "train.batch_size=8,x", "eval.every=5"])
    staleness, unknown, size = str(failure.value).splitlines()
    assert staleness.endswith("(point mode.staleness=0 train.batch_size=8 and 1 more point)")
    assert unknown.startswith("eval.every=5: no such key; did you mean eval.every_steps")
    assert size.startswith(
        "train.batch_size=x: expected auto or a whole number above 0 (point mode.staleness=0 train.batch_size=x"
    )


def test_a_swept_key_is_given_once() -> None:
    with pytest.raises(ConfigError, match="seed is swept and given a second time"):
        compose_grid(["seed=1,2", "seed=3"])
