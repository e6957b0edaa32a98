"""Labels that are not known."""

import numpy as np

from persia_cli.data.read.masked_labels import fill_chain, weight_totals, without_unknown

NAN = np.nan
LABELS = np.array([[1, NAN], [0, 1], [NAN, NAN], [1, 0]], np.float32)
WEIGHTS = np.array([1, 2, 4, 8], np.float32)


def test_they_have_no_weight_in_their_task_alone():
    labels, weights = without_unknown(LABELS, WEIGHTS)
    assert labels.tolist() == [[1, 0], [0, 1], [0, 0], [1, 0]]
    assert weights.tolist() == [[1, 0], [2, 2], [0, 0], [8, 8]]
    assert without_unknown(LABELS, None)[1].tolist() == [[1, 0], [1, 1], [0, 0], [1, 1]]
    assert weight_totals(LABELS, WEIGHTS).tolist() == [11, 10]
    assert weight_totals(LABELS, None).tolist() == [3, 2]


def test_known_labels_stay_the_same_arrays():
    known = LABELS[[1, 3]]
    assert [a is b for a, b in zip(without_unknown(known, WEIGHTS), (known, WEIGHTS), strict=True)] == [True, True]
    assert without_unknown(known, None)[1] is None
    assert without_unknown(known[:0], WEIGHTS[:0])[1].shape == (0,)


def test_in_a_chain_what_follows_a_zero_is_zero():
    labels = np.array([[0, NAN, NAN], [1, NAN, 1], [NAN, NAN, NAN], [1, 0, NAN]], np.float32)
    fill_chain(labels)
    expected = np.array([[0, 0, 0], [1, NAN, 1], [NAN, NAN, NAN], [1, 0, 0]], np.float32)
    assert np.array_equal(labels, expected, equal_nan=True)
