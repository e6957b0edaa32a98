"""The queries of a model, against plain loops over the samples in their order."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.control.position import SplitName
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.ids import NULL_ID
from persia_cli.data.read.source import open_source
from persia_cli.errors import DataError
from persia_cli.retrieval import question
from persia_cli.retrieval.evaluation import answer_of, ranking_metrics
from persia_cli.retrieval.question import Question, ask

Rows = list[tuple[int, tuple[int, ...], int, bool]]
"""User, source of the item, the user's mood (of which an item has none) and True for a positive sample."""


def run_of(folder: Path, by_user: bool) -> Run:
    draw = np.random.default_rng(2)
    for name, rows in (("train", 90), ("eval", 50)):
        item = draw.integers(0, 12, rows)
        table = {"user": draw.integers(0, 9, rows), "mood": np.arange(rows), "item": item}
        table["tags"] = [[] if each % 3 else [int(each), 1] for each in item]
        table["label"] = draw.random(rows) < 0.4
        pd.DataFrame(table).astype({"label": float}).to_parquet(folder / f"{name}.parquet")
    return compose_run(
        [
            *("conf=base", "dataset=parquet", f"dataset.path='{folder}'", "dataset.labels=[label]", "dataset.dense=[]"),
            "dataset.sparse=[user, mood, item, {name: tags, pooling: mean}]",
            "dataset.split={kind: files, train: [train.parquet], eval: [eval.parquet]}",
            *("model=two_tower", "model.user=[user, mood]", "model.item=[item, tags]"),
            *(["dataset.group_by=user"] if by_user else []),
        ]
    )


def in_order(run: Run, split: SplitName) -> Rows:
    source = open_source(run.dataset, split, run.seed, run.links, queries=True)
    whole = source.read(0, 0, source.rows)
    source.close()
    return as_rows(whole)


def as_rows(batch: Batch) -> Rows:
    n = batch.size
    found = []
    for s in range(n):
        bounds = [batch.offsets[f * n + s : f * n + s + 2] for f in range(4)]
        (user,), (mood,), (item,), tags = (batch.ids[slice(*each)].tolist() for each in bounds)
        found.append((user, (item, *tags), mood, bool(batch.labels[s, 0] >= 0.5)))
    return found


def pairs(asked: Question, which: str) -> set[tuple[object, tuple[int, ...]]]:
    """The pairs as users (or moods, if each sample is a query) and items."""
    users, items = as_rows(asked.users), as_rows(asked.items)
    found = getattr(asked, which)
    return {(users[query][2], items[item][1]) for query, item in zip(*map(np.ndarray.tolist, found), strict=True)}


@pytest.mark.parametrize(
    ("by_user", "samples", "keep_seen"), [(True, 7, False), (True, 8192, True), (False, 7, True), (False, 8192, False)]
)
def test_it_is_that_of_plain_loops(
    by_user: bool, samples: int, keep_seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question, "SAMPLES", samples)
    run = run_of(tmp_path, by_user)
    evaluated, trained = in_order(run, "eval"), in_order(run, "train")
    asked = ask(run, keep_seen)

    firsts: dict[tuple[int, ...], tuple[int, int]] = {}
    for user, item, mood, _ in [*evaluated, *trained]:
        firsts.setdefault(item, (user, mood))
    assert {item: (user, mood) for user, item, mood, _ in as_rows(asked.items)} == firsts
    assert asked.items.size == len(firsts)

    # A mood is of one evaluation sample alone, so it identifies the query.
    newest = {user if by_user else mood: mood for user, _, mood, positive in evaluated if positive}
    wanted = {(newest[user if by_user else mood], item) for user, item, mood, positive in evaluated if positive}
    seen = {(newest[user], item) for user, item, _, _ in trained if user in newest} if by_user else set()
    assert asked.seen_share == pytest.approx(len(wanted & seen) / len(wanted))
    hidden = set() if keep_seen else seen
    asking = [mood for mood in newest.values() if mood in {each for each, _ in wanted - hidden}]
    assert [mood for _, _, mood, _ in as_rows(asked.users)] == asking
    assert pairs(asked, "relevant") == wanted - hidden
    assert pairs(asked, "hidden") == {(mood, item) for mood, item in hidden if mood in asking}
    counts = [
        sum(positive and item == each for _, each, _, positive in trained) for _, item, _, _ in as_rows(asked.items)
    ]
    assert asked.popularity.tolist() == counts


@pytest.mark.parametrize("by_user", [True, False])
def test_of_many_users_always_the_same_are_asked(by_user: bool, tmp_path: Path) -> None:
    run = run_of(tmp_path, by_user)
    whole, some = ask(run, False), ask(run, False, limit=4)
    asking = {mood for _, _, mood, _ in as_rows(some.users)}
    assert 0 < len(asking) <= 4 < whole.users.size
    for which in ("relevant", "hidden"):
        assert pairs(some, which) == {(mood, item) for mood, item in pairs(whole, which) if mood in asking}
    assert some.popularity.tolist() == whole.popularity.tolist()
    assert as_rows(ask(run, False, limit=4).users) == as_rows(some.users)
    assert as_rows(ask(run, False, limit=1000).users) == as_rows(whole.users)


def test_an_untrained_model_finds_no_more_than_chance(tmp_path: Path) -> None:
    """Each of 100 queries has one of 4,000 relevant items; those come first in the data, before all others."""
    run = run_of(tmp_path, True)
    for name, items in (("train", range(4000)), ("eval", range(0, 4000, 40))):
        table = {"user": range(len(items)), "mood": 0, "item": items, "tags": [[0]] * len(items), "label": 1.0}
        pd.DataFrame(table).to_parquet(tmp_path / f"{name}.parquet")
    asked = ask(run, True)
    nothing = answer_of(asked, *[lambda samples: np.zeros((samples.size, 2), np.float32)] * 2)
    found = ranking_metrics(asked, nothing, [100, 2000])
    assert found["recall@100"] == pytest.approx(100 / 4000, abs=0.06)
    assert found["recall@2000"] == pytest.approx(0.5, abs=0.2)


def test_samples_without_an_item_or_a_query_ask_for_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, True)
    table = pd.read_parquet(tmp_path / "eval.parquet").astype({"user": "Int64", "item": "Int64"})
    empty = table["tags"].map(len) == 0
    table.loc[table.index % 3 == 0, "user"] = pd.NA
    table.loc[(table.index % 4 == 0) & empty, "item"] = pd.NA
    table.to_parquet(tmp_path / "eval.parquet")
    asked = ask(run, True)
    known = table[table["user"].notna() & table["item"].notna() & (table["label"] > 0)]
    assert {user for user, _, _, _ in as_rows(asked.users)} == set(known["user"])
    assert len(pairs(asked, "relevant")) == len(known[["user", "item"]].drop_duplicates())
    assert NULL_ID not in {item[0] for _, item, _, _ in as_rows(asked.items)}
    assert table["item"].isna().any()


def test_without_a_positive_sample_nothing_is_asked(tmp_path: Path) -> None:
    run = run_of(tmp_path, True)
    pd.read_parquet(tmp_path / "eval.parquet").assign(label=0.0).to_parquet(tmp_path / "eval.parquet")
    with pytest.raises(DataError, match="no evaluation sample is positive"):
        ask(run, False)
    pd.read_parquet(tmp_path / "train.parquet").assign(label=1.0).to_parquet(tmp_path / "eval.parquet")
    with pytest.raises(DataError, match=r"nothing new to retrieve.*--keep-seen"):
        ask(run, False)
    assert ask(run, True).seen_share == 1.0
    assert pairs(ask(run, None), "relevant") == pairs(ask(run, True), "relevant"), "an evaluation of a training"


def test_elements_of_sequences_are_items_and_all_of_a_users_own_are_hidden(tmp_path: Path) -> None:
    """One row a user: items 4 and 5 are only in lists, and a network reads the last two of a list."""
    for name, last in (("train", [[4, 1, 2], [5, 1]]), ("eval", [[4, 1, 2, 3], [5, 1, 2]])):
        item = [each + 2 for each in (1, 0)] if name == "train" else [6, 5]
        pd.DataFrame({"item": item, "last": last, "label": 1.0}).to_parquet(tmp_path / f"{name}.parquet")
    run = compose_run(
        [
            *("conf=base", "dataset=parquet", f"dataset.path='{tmp_path}'", "dataset.labels=[label]"),
            "dataset.sparse=[item, {name: last, table: item, pooling: none, max_length: 2}]",
            *("dataset.dense=[]", "dataset.split={kind: files, train: [train.parquet], eval: [eval.parquet]}"),
            *("model=sasrec", "model.attend={item: [last]}", "train.losses={label: {kind: sampled_softmax}}"),
        ]
    )
    asked = ask(run, None)
    assert set(asked.items.lists[0][0].tolist()) == {1, 2, 3, 4, 5, 6}
    found = dict(enumerate(asked.items.lists[0][0].tolist()))
    hidden = {(query, found[item]) for query, item in zip(*map(np.ndarray.tolist, asked.hidden), strict=True)}
    assert hidden == {(0, 4), (0, 1), (0, 2), (0, 3)}, "the second user has seen the item before"
    assert [found[item] for item in asked.relevant.items.tolist()] == [6]
    assert [each.tolist() for each in asked.users.newest([None, 2]).lists[1]] == [[2, 3], [0, 2]]
