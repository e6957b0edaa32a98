"""Made-up samples: pure, of the promised shape, with something to learn; and a ring of the first batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import Generator
from persia_cli.control.position import StepGrid
from persia_cli.data.read.generator import GeneratedRows, GeneratedSource, zipf_ranks
from persia_cli.data.read.source import Ring

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


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.05, 2.0])
def test_ids_follow_the_law(exponent: float) -> None:
    """Compared with the exact mass of [k, k + 1) under the density x ** -exponent on [1, 101)."""
    u = (np.arange(200_000) + 0.5) / 200_000
    share = np.bincount(zipf_ranks(u, 100.0, exponent).astype(np.int64), minlength=100) / u.size
    edges = np.arange(1.0, 102.0)
    area = np.log(edges) if exponent == 1.0 else edges ** (1.0 - exponent) / (1.0 - exponent)
    np.testing.assert_allclose(share, np.diff(area) / (area[-1] - area[0]), atol=2e-5)


def test_generated_rows_stay_what_they_are() -> None:
    batch = GeneratedRows(SMALL, 1, 42).rows(0, 4)
    assert batch.ids.tolist() == [0, 0, 0, 0, 5, 0, 0, 0, 5, 28, 0, 682]
    assert batch.labels[:, 0].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert batch.dense[0].tolist() == [-0.392655611038208, 0.09361150860786438, -1.2573859691619873]


GENERATOR = Generator(train_rows=50, eval_rows=0, dense=2, cardinalities=(9, 4))


def source() -> GeneratedSource:
    return GeneratedSource(GENERATOR, 1, "train", 3)


def test_steps_go_round_also_over_the_end_of_an_epoch() -> None:
    ring, grid = Ring(source(), 3, 8), StepGrid(50, 8, 1)
    for step in range(20):
        epoch, start, stop = grid.locate(step)
        batch = ring.read(epoch, start, stop)
        place = step % 3
        expected = source().read(0, place * 8, place * 8 + stop - start)
        assert batch.size == stop - start
        assert np.array_equal(batch.ids, expected.ids)
        assert np.array_equal(batch.dense, expected.dense)
