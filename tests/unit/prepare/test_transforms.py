"""What recipes make of whole numbers."""

import math

import numpy as np

from persia_cli.data.ids import text_id
from persia_cli.prepare.recipe import bucketise, log1p, log_buckets, number_ids

VALUES = np.array([-5, 0, 1, 2, 3, 10, 1_000_000])


def test_counts_become_their_logarithm() -> None:
    assert log1p(VALUES).dtype == np.float32
    assert np.allclose(log1p(VALUES), [0, 0, math.log(2), math.log(3), math.log(4), math.log(11), math.log(1_000_001)])


def test_buckets_count_the_edges_reached() -> None:
    assert bucketise(VALUES, [0, 3, 3.5, 1000]).tolist() == [0, 1, 1, 1, 2, 3, 4]


def test_buckets_of_logarithms() -> None:
    assert log_buckets(VALUES).tolist() == [-5, 0, 1, 2, math.floor(math.log(3) ** 2), 5, 190]


def test_numbers_as_categories_are_hashed_as_text() -> None:
    assert number_ids("n", VALUES).to_pylist() == [text_id("n", str(value)) for value in VALUES.tolist()]
