"""Counts of ids against their plain twin."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.kernels.table.sketch import count_ids, replace_rare_ids
from tests import naive, naive_text

RARE = 2**64 - 1


def count(ids, lines, salt=7, sketch=None):
    sketch = np.zeros(64 * lines, np.uint8) if sketch is None else sketch
    count_ids(np.array(ids, np.uint64), np.ones(len(ids), np.bool_), salt, sketch)
    return sketch


def kept(ids, sketch, least, salt=7):
    replaced = np.array(ids, np.uint64)
    replace_rare_ids(replaced, np.ones(len(ids), np.bool_), salt, sketch, least, RARE)
    return replaced.tolist()


@given(st.lists(st.integers(0, 60), max_size=200), st.sampled_from([1, 3]), st.integers(1, 6))
def test_rare_ids_are_those_of_the_naive_twin(ids, lines, least):
    counts = naive_text.counts_of(lines, ids, lambda id_: naive.mix(id_ ^ 7))
    assert kept(ids, count(ids, lines), least) == [id_ if counts[id_] >= least else RARE for id_ in ids]
    assert all(counts[id_] >= ids.count(id_) for id_ in ids)


def test_counts_do_not_depend_on_the_order_and_stop_at_255():
    ids = np.random.default_rng(0).zipf(1.3, 5000) % 400
    forwards, backwards = count(ids, 4), count(ids[::-1], 4)
    assert np.array_equal(forwards, backwards)
    assert count([1] * 1000, 4).max() == 255


def test_null_ids_and_those_of_other_tables_do_not_count():
    sketch = np.zeros(64 * 64, np.uint8)
    count_ids(np.full(9, 5, np.uint64), np.zeros(9, np.bool_), 7, sketch)
    assert not sketch.any()
    count([5] * 9, 64, salt=8, sketch=sketch)
    assert kept([5], sketch, 2) == [RARE]
    assert kept([5], sketch, 9, salt=8) == [5]
