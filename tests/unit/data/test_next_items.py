"""The candidates of a loss of next elements, and the weights of positions, as a loader sends them."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run, SampledSoftmax
from persia_cli.data.read import trained_items as module
from persia_cli.data.read.batch import Batch, assemble
from persia_cli.data.read.ids import NULL_ID
from persia_cli.data.read.next_items import NO_IDS, NextItemFeed, with_negatives
from persia_cli.data.read.source import open_source
from persia_cli.data.read.trained_items import TrainedItems, trained_items
from persia_cli.errors import DataError
from persia_cli.plan.columns import sparse_features

ITEMS = TrainedItems(np.arange(100, 120, dtype=np.uint64) * np.uint64(7), np.arange(1, 21, dtype=np.uint64))


def next_items(items: TrainedItems = ITEMS, seed: int = 5, **loss: Any) -> NextItemFeed:
    return NextItemFeed(SampledSoftmax(kind="sampled_softmax", **loss), 0, 1, items, seed)


def batch_of(items: list[int | None], lists: list[list[int]], labels: list[float], weights: Any = None) -> Batch:
    ids = np.array([NULL_ID if each is None else each for each in items], np.uint64)
    bounds = np.cumsum([0, *map(len, lists)])
    given = None if weights is None else np.array(weights, np.float32)
    history = np.array([each for one in lists for each in one], np.uint64)
    column = np.array(labels, np.float32)[:, None]
    return assemble(np.empty((len(items), 0), np.float32), column, given, [ids, history], [None, bounds])


def test_draws_are_uniform_and_a_function_of_seed_step_and_rank_alone() -> None:
    draws = next_items(negatives=10)
    places = [np.searchsorted(ITEMS.ids, draws.negatives(step, rank)) for step in range(2000) for rank in range(2)]
    counts = np.bincount(np.concatenate(places), minlength=20)
    # Chi-square of 19 degrees of freedom: above 43.8 in one of a thousand.
    assert ((counts - 2000.0) ** 2 / 2000.0).sum() < 43.8
    assert len({tuple(each.tolist()) for each in places}) == len(places)
    there = np.mean([np.bincount(each, minlength=20) > 0 for each in places])
    assert draws.drawn_share == pytest.approx(there, abs=0.01), "of ten draws some are the same"
    again, other = next_items(negatives=10), next_items(seed=6, negatives=10)
    assert again.negatives(1234, 1).tolist() == draws.negatives(1234, 1).tolist() != other.negatives(1234, 1).tolist()


def test_no_fewer_negatives_than_items_are_all_of_them() -> None:
    every = next_items(negatives=20)
    assert (every.negatives(3, 0).tolist(), every.drawn_share) == (ITEMS.ids.tolist(), 1.0)


@pytest.mark.parametrize("count", [0, 1])
def test_an_item_alone_is_compared_with_nothing(count: int) -> None:
    with pytest.raises(DataError, match=f"have {count} different items.*sampled_softmax compares items with each"):
        next_items(TrainedItems(*(part[:count] for part in ITEMS)))


def test_negatives_are_of_the_first_sample_and_of_a_feature_after_all_others() -> None:
    batch = batch_of([1, 2], [[3], [4, 5]], [1.0, 1.0])
    for ids in (np.array([8, 9, 8], np.uint64), NO_IDS):
        drawn = with_negatives(batch, ids)
        lists = [(values.tolist(), bounds.tolist()) for values, bounds in drawn.lists]
        count = ids.size
        assert lists == [([1, 2], [0, 1, 2]), ([3, 4, 5], [0, 1, 3]), (ids.tolist(), [0, count, count])]
    assert with_negatives(batch.rows(0, 0), np.array([8], np.uint64)).ids.size == 0


@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 9), st.lists(st.integers(0, 9), max_size=4),
                  st.sampled_from([0.0, 0.5, 1.0, np.nan]), st.sampled_from([0.0, 0.5, 2.0])),
        min_size=1, max_size=5,
    ),
    st.sampled_from(["all", "last"]),
)  # fmt: skip
def test_the_weights_of_positions_are_those_of_a_plain_loop(samples: Any, positions: Any) -> None:
    learnt = next_items(positions=positions)
    batch = learnt.without_nulls(batch_of(*(list(column) for column in zip(*samples, strict=True))))
    total = 0.0
    for item, history, label, weight in samples:
        if np.isnan(label):
            continue
        for place in range(len(history)):
            if place < len(history) - 1:
                total += weight if positions == "all" else 0.0
            else:
                total += weight * label if item is not None else 0.0
    np.testing.assert_allclose(learnt.totals(batch), [total])


def test_the_chance_to_be_in_a_step_is_that_of_its_draws() -> None:
    """Items of the batch as candidates: with T targets, one of share p is there with probability 1 - (1 - p)^T."""
    learnt = next_items(candidates="batch")
    batch = batch_of([700, 714], [[728, 700], []], [1.0, 1.0])
    shares = np.array([5, 1, 1, 3]) / ITEMS.counts.sum()
    whole, first, second = learnt.log_q(batch, [(0, 2), (0, 1), (1, 2)])
    np.testing.assert_allclose(whole, np.log(1 - (1 - shares) ** 2), rtol=1e-5)
    np.testing.assert_allclose(first, np.log(1 - (1 - shares[[0, 1, 2]]) ** 2), rtol=1e-5)
    np.testing.assert_allclose(second, np.log(shares[[3]]), rtol=1e-5)
    assert learnt.drawn_share == 0.0
    assert next_items().log_q(batch, [(0, 2)]) == [None]


def run_of(folder: Path) -> Run:
    return compose_run(
        [
            *("conf=base", "dataset=parquet", f"dataset.path='{folder}'", "dataset.labels=[label]", "dataset.dense=[]"),
            "dataset.sparse=[item, {name: last, table: item, pooling: none, max_length: 3}]",
            "dataset.split={kind: column, column: part, train: [train], eval: [valid]}",
            *("model=sasrec", "model.attend={item: [last]}", "train.losses={label: {kind: sampled_softmax}}"),
        ]
    )


@pytest.mark.parametrize("text", [False, True])
def test_items_are_those_of_training_rows_in_both_columns(
    text: bool, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(0)
    rows = 60
    table = pd.DataFrame(
        {"item": draw.integers(0, 40, rows), "label": 1.0, "part": draw.choice(["train", "valid"], rows)}
    )
    table["last"] = [draw.integers(0, 40, draw.integers(0, 6)).tolist() for _ in range(rows)]
    if text:
        table["item"] = table["item"].map(str)
        table["last"] = table["last"].map(lambda each: list(map(str, each)))
    table.loc[0, ["item", "part"]] = [None, "train"]
    table.to_parquet(tmp_path / "rows.parquet")
    run = run_of(tmp_path)
    source = open_source(run.dataset, "train", run.seed, run.links)
    whole = source.read(0, 0, source.rows)
    source.close()
    expected = Counter(whole.ids[whole.ids != np.uint64(NULL_ID)].tolist())

    def found(progress: Callable[[], Any] = lambda: None) -> TrainedItems:
        return trained_items(run.dataset, sparse_features(run), "item", run.seed, run.links, progress)

    monkeypatch.setattr(module, "CACHED_ROWS", 1)
    first, second = found(), found()
    assert isinstance(second.ids.base, np.memmap)
    for items in (first, second):
        assert dict(zip(items.ids.tolist(), items.counts.tolist(), strict=True)) == expected
        assert items.ids.tolist() == sorted(expected)
    [kept] = (cache.parent / "items").iterdir()
    begun, other_waits, ends = threading.Event(), threading.Event(), threading.Event()
    kept.unlink()
    with ThreadPoolExecutor(2) as loaders:
        one = loaders.submit(found, lambda: (begun.set(), ends.wait(20.0)))
        assert begun.wait(20.0)
        other = loaders.submit(found, other_waits.set)
        assert other_waits.wait(20.0)
        ends.set()
        assert all(isinstance(each.result().ids.base, np.memmap) for each in (one, other))
    kept.unlink()
    kept.touch()
    assert found().ids.tolist() == sorted(expected), "a damaged file is not used"
    table.drop(index=table.index[table["part"] == "train"][-1]).to_parquet(tmp_path / "rows.parquet")
    assert found().counts.sum() < first.counts.sum()
