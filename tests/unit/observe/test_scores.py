"""Scores: figures against exact ones, merging and the wire form to the bit."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import (
    binary_accuracy,
    binary_auroc,
    binary_average_precision,
)

from persia_cli.errors import PersiaError, WireError
from persia_cli.observe.scores import BINS, ScoreHistogram


def made_up(rows: int, tasks: int = 1, rate: float = 0.25, spread: float = 1.0, seed: int = 0):
    rng = np.random.default_rng(seed)
    logits = (np.log(rate / (1 - rate)) + spread * rng.standard_normal((rows, tasks))).astype(np.float32)
    labels = (rng.random((rows, tasks)) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return logits, labels


def filled(logits, labels, weights=None) -> ScoreHistogram:
    scores = ScoreHistogram(labels.shape[1])
    scores.add(logits, labels, weights)
    return scores


@pytest.mark.parametrize(("rate", "spread"), [(0.25, 1.0), (0.001, 1.5), (0.97, 0.5), (0.5, 4.0), (0.3, 0.02)])
def test_auc_is_the_exact_one(rate, spread):
    logits, labels = made_up(50_000, rate=rate, spread=spread)
    exact = binary_auroc(torch.from_numpy(logits[:, 0]).double().sigmoid(), torch.from_numpy(labels[:, 0]).long())
    assert filled(logits, labels).auc() == pytest.approx(float(exact), abs=2e-5)


@pytest.mark.parametrize(("rate", "spread"), [(0.25, 1.0), (0.001, 1.5), (0.97, 0.5), (0.5, 4.0), (0.3, 0.02)])
def test_average_precision_and_accuracy_are_the_exact_ones(rate, spread):
    logits, labels = made_up(50_000, rate=rate, spread=spread)
    probabilities, truth = torch.from_numpy(logits[:, 0]).double().sigmoid(), torch.from_numpy(labels[:, 0]).long()
    scores = filled(logits, labels)
    assert scores.average_precision() == pytest.approx(float(binary_average_precision(probabilities, truth)), abs=1e-4)
    assert scores.accuracy() == pytest.approx(float(binary_accuracy(probabilities, truth)), abs=1e-6)


def test_weighted_average_precision_and_accuracy_count_samples_by_weight():
    logits, labels = made_up(300, spread=2.0)
    weights = np.random.default_rng(1).integers(0, 5, 300)
    repeated = np.repeat(np.arange(300), weights)
    scores, expected = filled(logits, labels, weights), filled(logits[repeated], labels[repeated])
    assert scores.average_precision() == pytest.approx(expected.average_precision(), rel=1e-12)
    assert scores.accuracy() == pytest.approx(expected.accuracy(), rel=1e-12)


def test_weighted_auc_counts_pairs_by_weight():
    logits, labels = made_up(300, spread=2.0)
    weights = np.random.default_rng(1).random(300).astype(np.float32)
    z, y, w = logits[:, 0], labels[:, 0] == 1, weights.astype(np.float64)
    pairs = np.outer(w[y], w[~y])
    exact = (pairs * (z[y][:, None] > z[~y])).sum() / pairs.sum()
    assert filled(logits, labels, weights).auc() == pytest.approx(exact, abs=1e-3)


def test_ties_count_half():
    assert filled(np.zeros((4, 1)), np.array([[0.0], [1.0], [1.0], [0.0]])).auc() == 0.5


def test_figures_of_probabilities_are_exact():
    logits, labels = made_up(2_000, spread=2.0)
    weights = np.random.default_rng(2).random(2_000)
    scores = filled(logits, labels, weights)
    p, y = 1 / (1 + np.exp(-logits[:, 0].astype(np.float64))), labels[:, 0]
    loss = -np.average(y * np.log(p) + (1 - y) * np.log1p(-p), weights=weights)
    rate = np.average(y, weights=weights)
    base = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert scores.log_loss() == pytest.approx(loss, rel=1e-12)
    assert scores.calibration() == pytest.approx((p * weights).sum() / (y * weights).sum(), rel=1e-12)
    assert scores.normalized_entropy() == pytest.approx(loss / base, rel=1e-12)
    assert scores.weight() == pytest.approx(weights.sum(), rel=1e-12)


def test_soft_labels_count_on_both_sides():
    scores = filled(np.array([[1.0], [-1.0]]), np.array([[0.5], [0.5]]))
    assert scores.auc() == 0.5
    assert scores.calibration() == pytest.approx(1.0)


def test_tasks_are_kept_apart():
    logits, labels = made_up(5_000, tasks=2)
    both = filled(logits, labels)
    for task in range(2):
        alone = filled(logits[:, task : task + 1], labels[:, task : task + 1])
        assert both.auc(task) == alone.auc()
        assert both.log_loss(task) == alone.log_loss()


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_has_no_auc_and_no_entropy(label):
    scores = filled(np.array([[0.3], [-0.2]]), np.full((2, 1), label))
    assert scores.auc() is None
    assert scores.average_precision() == (1.0 if label else None)
    assert scores.normalized_entropy() is None
    assert scores.log_loss() is not None


def test_an_empty_histogram_says_nothing():
    scores = ScoreHistogram(1)
    scores.add(np.empty((0, 1)), np.empty((0, 1)))
    figures = [scores.auc(), scores.log_loss(), scores.calibration(), scores.normalized_entropy()]
    assert [*figures, scores.average_precision(), scores.accuracy()] == [None] * 6


def test_huge_logits_fall_in_the_outer_bins_and_stay_exact_in_the_loss():
    scores = filled(np.array([[1e4], [-1e4]]), np.array([[0.0], [1.0]]))
    assert scores.auc() == 0.0
    assert scores.log_loss() == 1e4


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_prediction_that_is_no_number_is_refused(value):
    with pytest.raises(PersiaError, match="NaN"):
        ScoreHistogram(1).add(np.array([[value]]), np.array([[1.0]]))


def test_parts_merged_give_the_whole_to_the_bit():
    logits, labels = made_up(8_192, tasks=2)
    parts = [filled(logits[at : at + 1000], labels[at : at + 1000]) for at in range(0, 8_192, 1000)]
    merged = ScoreHistogram(2)
    for part in parts:
        merged.merge(ScoreHistogram.decode(2, *part.encode()))
    again = ScoreHistogram(2)
    for part in parts:
        again.merge(part)
    assert all(np.array_equal(a, b) for a, b in zip(merged.encode(), again.encode(), strict=True))
    whole = filled(logits, labels)
    assert merged.auc(0) == whole.auc(0)
    assert merged.weight(1) == whole.weight(1)
    assert merged.log_loss(1) == pytest.approx(whole.log_loss(1), rel=1e-12)


def test_the_wire_form_is_sparse_and_exact():
    logits, labels = made_up(100, tasks=3)
    weights = np.random.default_rng(3).random(100)
    scores = filled(logits, labels, weights)
    bins, counts = scores.encode()
    assert bins.dtype == np.uint32
    assert counts.dtype == np.float64
    assert len(bins) <= 3 * 100 + 3 * 4
    again = ScoreHistogram.decode(3, bins, counts)
    assert np.array_equal(again.encode()[1], counts)
    assert [again.auc(task) for task in range(3)] == [scores.auc(task) for task in range(3)]


@pytest.mark.parametrize("bins", [[4, 3], [5, 5], [0, 2 * BINS + 4], [1]])
def test_positions_that_do_not_fit_are_refused(bins):
    with pytest.raises(WireError, match="do not fit"):
        ScoreHistogram.decode(1, np.array(bins, np.uint32), np.ones(2))


def test_histograms_of_other_tasks_do_not_merge():
    with pytest.raises(ValueError, match="2 tasks"):
        ScoreHistogram(1).merge(ScoreHistogram(2))
