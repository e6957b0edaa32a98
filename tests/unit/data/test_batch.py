"""Batches: cutting, joining, telling one-hot batches apart, and keys of their items."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.data.read.batch import Batch, assemble, join
from persia_cli.data.read.item_keys import item_keys
from persia_cli.errors import DataError
from tests.support.samples import ids_by_sample

Samples = list[list[list[int]]]
"""Ids by sample and feature."""


def make(samples: Samples, features: int, weighted: bool = False) -> Batch:
    """Make a batch the slow way, sample by sample."""
    n = len(samples)
    ids = [np.array([i for sample in samples for i in sample[f]], np.uint64) for f in range(features)]
    offsets = [np.cumsum([0] + [len(sample[f]) for sample in samples]) for f in range(features)]
    labels = np.arange(n, dtype=np.float32).reshape(n, 1)
    dense = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
    weights = np.arange(n, dtype=np.float32) if weighted else None
    return assemble(dense, labels, weights, ids, offsets, np.arange(n, dtype=np.uint64) if weighted else None)


@st.composite
def samples(draw: st.DrawFn) -> tuple[Samples, int]:
    features = draw(st.integers(0, 3))
    ids = st.lists(st.integers(0, 2**64 - 1), max_size=4)
    return draw(st.lists(st.lists(ids, min_size=features, max_size=features), max_size=8)), features


@given(samples(), st.lists(st.integers(0, 7)), st.booleans())
def test_taken_samples_come_in_the_order_that_was_asked_for(
    made: tuple[Samples, int], places: list[int], weighted: bool
) -> None:
    whole, features = made
    chosen = [place % len(whole) for place in places] if whole else []
    batch = make(whole, features, weighted)
    taken = batch.take(np.array(chosen, np.int64))
    assert ids_by_sample(taken) == [whole[place] for place in chosen]
    for own, all_ in ((taken.dense, batch.dense), (taken.labels, batch.labels), (taken.query_ids, batch.query_ids)):
        assert (own is None) == (all_ is None)
        assert own is None or own.tolist() == all_[chosen].tolist()
    assert (taken.weights is None) == (not weighted)


@given(samples(), st.integers(0, 8), st.booleans())
def test_parts_are_slices_and_joining_them_gives_the_whole(made: tuple[Samples, int], cut: int, weighted: bool) -> None:
    values, features = made
    whole = make(values, features, weighted)
    cut = min(cut, len(values))
    parts = [whole.rows(0, cut), whole.rows(cut, len(values))]
    assert [ids_by_sample(part) for part in parts] == [values[:cut], values[cut:]]
    joined = join(parts)
    assert ids_by_sample(joined) == values
    for name in ("dense", "labels", "offsets", "weights", "query_ids"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))


def test_features_of_one_id_need_no_offsets() -> None:
    ids = [np.array([1, 2], np.uint64), np.array([3, 4, 5], np.uint64)]
    batch = assemble(np.zeros((2, 0), np.float32), np.zeros((2, 1), np.float32), None, ids, [None, np.array([0, 3, 3])])
    assert ids_by_sample(batch) == [[[1], [3, 4, 5]], [[2], []]]


def test_more_ids_than_offsets_can_count_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persia_cli.data.read.batch._MAX_IDS", 3)
    with pytest.raises(DataError, match=r"2 samples hold 4 ids.*max_length"):
        make([[[1, 2]], [[3, 4]]], 1)


IDS = st.lists(st.integers(0, 3) | st.integers(0, 2**64 - 1), max_size=3)


@given(st.lists(st.tuples(IDS, IDS, IDS), max_size=12), st.sampled_from([(0,), (1, 2), (2, 0, 1)]))
def test_they_distinguish_items_by_their_features(samples, features):
    columns = list(zip(*samples, strict=True)) or [()] * 3
    offsets = [np.cumsum([0, *map(len, column)]) for column in columns]
    ids = [np.array([id_ for ids in column for id_ in ids], np.uint64) for column in columns]
    empty = np.empty((len(samples), 1), np.float32)
    batch = assemble(empty, empty, None, ids, offsets)
    keys = item_keys(batch, features).tolist()
    items = [tuple(tuple(sorted(sample[feature])) for feature in features) for sample in samples]
    assert len(keys) == len(items)
    assert [keys.index(key) for key in keys] == [items.index(item) for item in items]
