"""Metrics of labels that are numbers: those of torchmetrics, for any distribution of samples."""

import numpy as np
import pytest
import torch
from torchmetrics.functional import mean_absolute_error, mean_squared_error, r2_score

from persia_cli.observe.quality import quality
from persia_cli.observe.scores import ScoreHistogram

RNG = np.random.default_rng(0)
OUTPUTS = RNG.normal(1.0, 0.7, (500, 2)).astype(np.float32)
LABELS = np.stack([RNG.normal(3.0, 2.0, 500), RNG.poisson(2.0, 500)], axis=1).astype(np.float32)
LINKS = ("identity", "exp")


def scored(rows, weights=None) -> ScoreHistogram:
    scores = ScoreHistogram(2, links=LINKS)
    scores.add(OUTPUTS[rows], LABELS[rows], weights)
    return scores


@pytest.mark.parametrize("task", [0, 1])
def test_they_are_those_of_torchmetrics(task):
    scores = scored(slice(None))
    predicted = torch.from_numpy(OUTPUTS[:, task]).double()
    predicted, labels = (predicted if task == 0 else predicted.exp()), torch.from_numpy(LABELS[:, task]).double()
    mse = mean_squared_error(predicted, labels).item()
    assert scores.root_mean_squared_error(task) == pytest.approx(mse**0.5, rel=1e-12)
    assert scores.mean_absolute_error(task) == pytest.approx(mean_absolute_error(predicted, labels).item(), rel=1e-12)
    assert scores.r2(task) == pytest.approx(r2_score(predicted, labels).item(), rel=1e-9)
    assert scores.calibration(task) == pytest.approx((predicted.sum() / labels.sum()).item(), rel=1e-12)


def test_parts_add_up_through_the_wire_and_a_weight_counts_so_often():
    weights = RNG.integers(0, 4, 500).astype(np.float32)
    whole = ScoreHistogram(2)
    for part in np.array_split(np.arange(500), 7):
        whole.merge_encoded(scored(part, weights[part]).encode())
    repeated = scored(np.repeat(np.arange(500), weights.astype(int)))
    links = dict(zip(("stars", "visits"), LINKS, strict=True))
    found, expected = quality(links, whole), quality(links, repeated)
    assert list(found) == ["calibration_visits", "rmse_stars", "rmse_visits", "mae_stars", "mae_visits", "r2_stars",
                           "r2_visits"]  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_class_label_has_the_same_metrics_with_a_number_label():
    classes = (LABELS > 2).astype(np.float32)
    both, alone = ScoreHistogram(2, links=("logistic", "identity")), ScoreHistogram(1)
    both.add(OUTPUTS, np.stack([classes[:, 0], LABELS[:, 1]], axis=1))
    alone.add(OUTPUTS[:, :1], classes[:, :1])
    assert (both.auc(), both.log_loss(), both.calibration()) == (alone.auc(), alone.log_loss(), alone.calibration())
    assert both.auc(1) is None


def test_undefined_errors_are_none():
    nothing, equal = ScoreHistogram(1, links=("identity",)), ScoreHistogram(1, links=("identity",))
    equal.add(np.array([[1.0], [2.0]]), np.full((2, 1), 1e7 / 3))
    assert (nothing.root_mean_squared_error(), nothing.mean_absolute_error(), nothing.r2()) == (None, None, None)
    assert equal.r2() is None
    assert equal.root_mean_squared_error() == pytest.approx(1e7 / 3, rel=1e-6)
