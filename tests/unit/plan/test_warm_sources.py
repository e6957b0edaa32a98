"""The tables that `init_from` loads, skips, renames and refuses, by a generated manifest and file footers."""

from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import InitFrom, Run, SparseFeature
from persia_cli.errors import UserError
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.warm_sources import plan_warm_start
from persia_cli.plan.warm_start import WarmStart
from tests.support.saved_rows import made_up_rows, write_run

OLD = ("user", "item", "shop")
DIM = 4


def words(*features: str | dict[str, Any], dim: int = DIM) -> list[str]:
    listed = ", ".join(
        each if isinstance(each, str) else "{" + ", ".join(f"{k}: {v}" for k, v in each.items()) + "}"
        for each in features
    )
    return [
        *("conf=criteo", "model=ffnn", f"model.dim={dim}", "optimizer.embedding={kind: sgd, lr: 0.1}"),
        "dataset={kind: parquet, path: none, labels: [y], dense: [price], split: {kind: every, n: 5}, "
        f"sparse: [{listed}]}}",
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("source") / "old"
    write_run(run_dir, compose_run(words(*OLD)), 500, [made_up_rows(300, DIM, 500, OLD)])
    return run_dir


@cache
def composed(*new: str) -> Run:
    return compose_run(new)


def planned(new: list[str] | Run, **init_from: Any) -> WarmStart:
    run = new if isinstance(new, Run) else composed(*new)
    run = run.model_copy(update={"init_from": InitFrom.model_validate(init_from)})
    return plan_warm_start(run, embedding_layout(run))


def refused(new: list[str] | Run, **init_from: Any) -> list[str]:
    with pytest.raises((UserError, ValueError)) as error:
        planned(new, **init_from)
    return str(error.value).splitlines()


def test_tables_of_the_same_name_are_loaded_and_others_reported(source):
    warm = planned(words("user", "city", "item"), path=str(source))
    assert [(each.name, each.source, each.states) for each in warm.tables] == [
        ("user", "user", True),
        ("item",) * 2 + (True,),
    ]
    assert warm.rows == sum(each.rows for each in warm.tables) > 0
    assert (warm.new, warm.unused, warm.dense, warm.states, warm.step) == (("city",), ("shop",), True, True, 500)
    assert warm.checkpoint == str(source / "checkpoints" / "step-500")
    assert planned(words("user"), path=warm.checkpoint).checkpoint == warm.checkpoint
    assert planned(words("user"), path=str(source), skip=["dense", "optimizer"]).dense is False


@settings(max_examples=40, deadline=None)
@given(
    tables=st.dictionaries(
        st.sampled_from(OLD), st.lists(st.sampled_from("abcd"), max_size=3, unique=True), max_size=3
    ),
    names=st.lists(st.sampled_from([*OLD, *"abcd"]), min_size=1, max_size=6, unique=True),
    skip=st.lists(st.sampled_from([*OLD, *"abcd", "dense", "optimizer"]), max_size=3, unique=True),
)
def test_renames_and_skips_follow_their_rule(source, tables, names, skip):
    """The rule once more, table by table; contradictory settings are refused."""
    asked = {"path": str(source), "tables": tables, "skip": skip}
    targets = [new for each in tables.values() for new in each]
    contradicts = (
        len(set(targets)) < len(targets)
        or set(targets) & set(skip)
        or not set(targets) <= set(names)
        or not set(skip) - {"dense", "optimizer"} <= set(names)
    )
    expected = {}
    for name in names:
        explicit = [old for old, new in tables.items() if name in new]
        if explicit:
            expected[name] = explicit[0]
        elif name in OLD and name not in tables and name not in skip:
            expected[name] = name
    base = composed(*words("user"))
    features = tuple(SparseFeature(name=name) for name in names)
    run = base.model_copy(update={"dataset": base.dataset.model_copy(update={"sparse": features})})
    if contradicts or (not expected and "dense" in skip):
        assert refused(run, **asked)
        return
    warm = planned(run, **asked)
    assert {each.name: each.source for each in warm.tables} == expected
    assert set(warm.new) == set(names) - set(expected)
    assert set(warm.unused) == set(OLD) - set(expected.values())
    assert all(each.states is ("optimizer" not in skip) for each in warm.tables)


def test_every_difference_is_a_separate_sentence(source):
    text = {"name": "shop", "ids": "text"}
    new = [*words("user", "item", text), "embedding.tables={user: {dim: 8}, item: {hash_stack: {rounds: 2, size: 10}}}"]
    lines = refused(new, path=str(source))
    assert [line.split(",")[0] for line in lines] == [
        "table user has dim 8",
        "table item has a hash_stack of 2 x 10 rows",
        "table shop has ids from text",
    ]
    warm = planned(new, path=str(source), skip=["user", "item", "shop"])
    assert warm.new == ("user", "item", "shop")
    (line,) = refused(words("user", "city", dim=8), path=str(source), tables={"item": "city"}, skip=["user"])
    assert line.startswith("table city (from item) has dim 8")
    edges = {"name": "user", "buckets": "[1.0, 2.5]"}
    (line,) = refused(words(edges), path=str(source))
    assert line.startswith("table user has ids from buckets at 1, 2.5, and was saved with ids from numbers")


def test_text_ids_do_not_follow_a_rename(tmp_path):
    """The name of the table is the seed of their hash: the rows would never be found."""
    text = {"name": "user", "ids": "text"}
    write_run(tmp_path / "old", compose_run(words(text)), 5, [made_up_rows(30, DIM, 5, ["user"])])
    (line,) = refused(words({"name": "member", "ids": "text"}), path=str(tmp_path / "old"), tables={"user": "member"})
    assert "ids of text depend on the name of their table" in line
    assert "keep the name (dataset.sparse: table: user)" in line
    kept = words({"name": "member", "table": "user", "ids": "text"})
    assert [each.name for each in planned(kept, path=str(tmp_path / "old")).tables] == ["user"]


def test_another_optimizer_takes_the_embedding_alone(source):
    new = [*words("user", "item"), "embedding.tables.user.optimizer={kind: adam, lr: 0.1}"]
    warm = planned(new, path=str(source))
    assert {each.name: each.states for each in warm.tables} == {"user": False, "item": True}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"tables": {"users": "user"}}, "init_from.tables.users: {} has no table users; its tables are"),
        ({"tables": {"user": "users"}}, "init_from.tables: this run has no table users; the tables are user, item"),
        ({"skip": ["itme"]}, "init_from.skip: this run has no table itme; the tables are user, item"),
        ({"vectors": {"itme": "x"}}, "init_from.vectors: this run has no table itme"),
        ({"skip": ["user", "item", "dense"]}, "init_from takes nothing from {}: it has the tables"),
        ({"path": "/nowhere/at/all"}, "init_from.path=/nowhere/at/all is neither a run directory nor a checkpoint"),
        ({"path": "README.md"}, "init_from.path=README.md is a file, and not the folder of a run or a checkpoint; vec"),
        ({"tables": {"user": "item", "item": "item"}}, "init_from: table item would begin with the rows of table user"),
        ({"vectors": {"item": "a"}, "skip": ["item"]}, "init_from: table item is to begin with a, and is in init"),
        ({"vectors": {"item": "/a"}}, "init_from.vectors.item=/a does not exist or has no Parquet file; correct the"),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(source, asked, sentence):
    lines = refused(words("user", "item"), **({"path": str(source)} | asked))
    assert any(sentence.format(source) in line for line in lines), lines


def test_more_rows_than_fit_are_refused_before_anything_starts(source):
    (line,) = refused([*words("user", "item"), "embedding.capacity=50"], path=str(source))
    assert "(user, item)" in line
    assert "embedding.capacity" in line


def test_vectors_take_the_place_of_a_saved_table(source, tmp_path):
    path = tmp_path / "v.parquet"
    pq.write_table(pa.table({"id": [1, 2], "v": [[0.0] * DIM] * 2}), path)
    warm = planned(words("user", "item"), path=str(source), vectors={"item": str(path)})
    assert ([each.name for each in warm.tables], [each.name for each in warm.vectors]) == (["user"], ["item"])
    assert warm.unused == ("item", "shop")
    assert warm.vectors[0].rows == 2
    alone = planned(words("user", "item"), vectors={"item": {"path": str(path), "id": "id", "vector": "v"}})
    assert (alone.checkpoint, alone.dense, alone.new, alone.rows) == (None, False, ("user",), 2)
    stack = [*words("item"), "embedding.tables.item.hash_stack={rounds: 2, size: 10}"]
    (line,) = refused(stack, vectors={"item": str(path)})
    assert line == "init_from.vectors.item: the rows of a hash_stack belong to no ids; take it out"
    (line,) = refused(words("item", dim=8), vectors={"item": str(path)})
    assert line.endswith("row group 0: the vector of row 0 has dim 4, and the table has dim 8")


def test_numbers_with_other_statistics_than_saved_are_noticed(tmp_path):
    def numbers(mean: float, bins: list[int]) -> list[str]:
        dense = f"{{name: price, transform: standardise, mean: {mean}, deviation: 2.0}}"
        dense += f", {{name: age, transform: piecewise, bins: {bins}}}, {{name: logged, transform: log1p}}, plain"
        return [*words(*OLD), f"dataset.dense=[{dense}]"]

    write_run(tmp_path / "old", compose_run(numbers(1.5, [0, 5, 9])), 500, [made_up_rows(300, DIM, 500, OLD)])
    new = numbers(1.25, [0, 6, 9])
    price, age = planned(new, path=str(tmp_path / "old")).notes
    assert price.startswith("dense feature price is transformed")
    assert age.startswith("dense feature age is transformed")
    assert planned(new, path=str(tmp_path / "old"), skip=["dense"]).notes == ()
    assert planned(numbers(1.5, [0, 5, 9]), path=str(tmp_path / "old")).notes == ()


def test_features_in_another_order_are_noticed(source):
    (note,) = planned(words("item", "user", "shop"), path=str(source)).notes
    assert note.startswith("sparse feature 0 of the network reads table item, where the saved one read user")
    assert planned(words("item", "user", "shop"), path=str(source), skip=["dense"]).notes == ()
    assert planned(words(*OLD), path=str(source)).notes == ()
    assert planned(words("member", "item", "shop"), path=str(source), tables={"user": "member"}).notes == ()
