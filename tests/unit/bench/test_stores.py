"""Ids of measurements have the distribution that is stated for them."""

import numpy as np
import pytest

from scripts.bench import stores


def test_zipf_draws_common_ids_more_often() -> None:
    ids = stores.zipf(np.random.default_rng(0), 1000, 100_000)
    assert ids.min() >= 0
    assert ids.max() < 1000
    count = np.bincount(ids, minlength=1000)
    # Of id k and above there is the integral of x ** -1.05 from k + 1 to 1001.
    share = (10**-0.05 - 1001**-0.05) / (1 - 1001**-0.05)
    assert count[9:].sum() / ids.size == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("skewed", [True, False])
def test_a_batch_has_an_id_of_each_feature(skewed: bool) -> None:
    cardinalities = (1, 2, 3, 1000)
    ids = stores.batch(np.random.default_rng(0), cardinalities, 500, skewed)
    assert ids.shape == (4, 500)
    assert (ids >= 0).all()
    assert (ids.max(axis=1) < cardinalities).all()


@pytest.mark.parametrize(("values", "size"), [(100, 100), (100, 60), (10_000, 100)])
def test_distinct_ids(values: int, size: int) -> None:
    ids = stores.distinct(np.random.default_rng(0), values, size, skewed=False)
    assert ids.size == size
    assert np.unique(ids).size == size
    assert ids.max() < values


def test_distinct_skewed_ids_are_those_drawn() -> None:
    ids = stores.distinct(np.random.default_rng(0), 1000, 500, skewed=True)
    assert 0 < ids.size < 500
    assert np.unique(ids).size == ids.size
