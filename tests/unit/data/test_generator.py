"""Made-up samples: pure, of the promised shape, and with something to learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import Generator
from persia_cli.data.read.generator import GeneratedRows, GeneratedSource, zipf_ranks

SMALL = Generator(train_rows=10_000, eval_rows=500, dense=3, cardinalities=(1, 7, 10_131_227), signal=1.4)


def auc(scores: NDArray[np.float64], labels: NDArray[np.float32]) -> float:
    ranks = np.empty(scores.size)
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, scores.size + 1)
    ones = labels > 0.5
    return float((ranks[ones].sum() - ones.sum() * (ones.sum() + 1) / 2) / (ones.sum() * (~ones).sum()))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**63 - 1), st.integers(0, 9000), st.integers(1, 5000), st.integers(1, 2))
def test_a_row_is_the_same_whatever_it_is_read_with(seed: int, start: int, size: int, tasks: int) -> None:
    rows = GeneratedRows(SMALL, tasks, seed)
    batch = rows.rows(start, start + size)
    for row in (0, size // 2, size - 1):
        alone = rows.rows(start + row, start + row + 1)
        part = batch.rows(row, row + 1)
        np.testing.assert_array_equal(alone.ids, part.ids)
        np.testing.assert_array_equal(alone.dense, part.dense)
        np.testing.assert_array_equal(alone.labels, part.labels)


def test_batches_have_the_promised_shape() -> None:
    batch = GeneratedRows(SMALL, 2, 5).rows(100, 5100)
    assert batch.dense.shape == (5000, 3)
    assert batch.dense.dtype == batch.labels.dtype == np.float32
    assert batch.labels.shape == (5000, 2)
    assert np.array_equal(batch.offsets, np.arange(len(batch.offsets)))
    assert batch.weights is None
    ids = batch.ids.reshape(3, 5000)
    assert ids.max(axis=1).tolist()[:2] == [0, 6]
    assert 1_000_000 < ids[2].max() < 10_131_227
    assert not np.array_equal(batch.labels[:, 0], batch.labels[:, 1])


def test_groups_are_made_up_too() -> None:
    for split in ("train", "eval"):
        batch = GeneratedSource(SMALL, 1, split, 5, with_queries=True).read(0, 100, 200)
        assert batch.query_ids is not None
        np.testing.assert_array_equal(batch.query_ids, batch.ids.reshape(3, 100)[0])
    assert GeneratedSource(SMALL, 1, "eval", 5).read(0, 0, 10).query_ids is None
    no_features = Generator(train_rows=1, eval_rows=9, dense=1, cardinalities=())
    alike = GeneratedSource(no_features, 1, "eval", 5, with_queries=True).read(0, 0, 9).query_ids
    assert alike is not None
    assert alike.tolist() == [0] * 9


def test_splits_are_different_rows_of_one_model() -> None:
    train, evaluation = (GeneratedSource(SMALL, 1, split, 5) for split in ("train", "eval"))
    assert (train.rows, evaluation.rows) == (10_000, 500)
    rows = GeneratedRows(SMALL, 1, 5)
    np.testing.assert_array_equal(evaluation.read(3, 0, 500).dense, rows.rows(10_000, 10_500).dense)
    np.testing.assert_array_equal(train.read(1, 0, 500).dense, rows.rows(0, 500).dense)
    with pytest.raises(ValueError, match="not within"):
        evaluation.read(0, 400, 501)


def test_the_planted_model_explains_the_labels_and_the_rate_is_right() -> None:
    generator = Generator(train_rows=1, eval_rows=0, dense=4, cardinalities=(50, 3000, 2_000_000), label_rate=0.3)
    for signal, low, high in ((1.4, 0.79, 0.82), (0.0, 0.48, 0.52)):
        rows = GeneratedRows(generator.model_copy(update={"signal": signal}), 1, 11)
        batch = rows.rows(0, 60_000)
        assert abs(batch.labels.mean() - 0.3) < 0.02
        scores = rows.probability(0, batch.dense, batch.ids.reshape(3, -1))
        best = auc(scores + 1e-12 * np.arange(scores.size), batch.labels[:, 0])
        assert low < best < high


@pytest.mark.parametrize(("dense", "cardinalities"), [(3, ()), (0, (100, 1000))])
def test_the_whole_signal_goes_where_there_are_features(dense: int, cardinalities: tuple[int, ...]) -> None:
    rows = GeneratedRows(Generator(train_rows=1, eval_rows=0, dense=dense, cardinalities=cardinalities), 1, 2)
    batch = rows.rows(0, 50_000)
    chances = rows.probability(0, batch.dense, batch.ids.reshape(len(cardinalities), 50_000))
    assert abs(np.log(chances / (1 - chances)).std() - 1.0) < 0.05


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.05, 2.0])
def test_ids_follow_the_law(exponent: float) -> None:
    """Compared with the exact mass of [k, k + 1) under the density x ** -exponent on [1, 101)."""
    u = (np.arange(200_000) + 0.5) / 200_000
    share = np.bincount(zipf_ranks(u, 100.0, exponent).astype(np.int64), minlength=100) / u.size
    edges = np.arange(1.0, 102.0)
    area = np.log(edges) if exponent == 1.0 else edges ** (1.0 - exponent) / (1.0 - exponent)
    np.testing.assert_allclose(share, np.diff(area) / (area[-1] - area[0]), atol=2e-5)


def test_the_largest_chance_stays_within_the_cardinality() -> None:
    u = np.array([0.0, 1.0 - 2.0**-53])
    for cardinality in (1, 2, 3, 10_131_227):
        assert zipf_ranks(u, float(cardinality), 1.05).tolist() == [0, cardinality - 1]


def test_generated_rows_stay_what_they_are() -> None:
    batch = GeneratedRows(SMALL, 1, 42).rows(0, 4)
    assert batch.ids.tolist() == [0, 0, 0, 0, 5, 0, 0, 0, 5, 28, 0, 682]
    assert batch.labels[:, 0].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert batch.dense[0].tolist() == [-0.392655611038208, 0.09361150860786438, -1.2573859691619873]
