"""Keys of items: equal for the same ids of all their features, and for those alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.data.read.batch import assemble
from persia_cli.data.read.item_keys import item_keys

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
