"""Metrics of labels that are numbers, quantiles and reliability diagrams, against torchmetrics and numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional import mean_absolute_error, mean_squared_error, r2_score

from persia_cli.observe.scores import PARTS, ScoreHistogram, quality, quantile, reliability

ROWS = 5000
DRAW = np.random.default_rng(0)
LOGITS = DRAW.normal(-2.0, 1.5, (ROWS, 2)).astype(np.float32)
CHANCES = 1.0 / (1.0 + np.exp(-LOGITS.astype(np.float64)))
LABELS = (DRAW.random((ROWS, 2)) < CHANCES).astype(np.float64)


@pytest.fixture(scope="module")
def scores() -> ScoreHistogram:
    """The scores of two tasks."""
    made = ScoreHistogram(2)
    made.add(LOGITS, LABELS)
    return made


@pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 1.0])
def test_quantiles(scores: ScoreHistogram, q: float) -> None:
    expected = np.quantile(CHANCES[:, 1], q, method="inverted_cdf")
    assert quantile(scores, q, 1) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("task", [0, 1])
def test_a_reliability_diagram_has_parts_of_equal_weight(scores: ScoreHistogram, task: int) -> None:
    order = np.argsort(CHANCES[:, task], kind="stable").reshape(PARTS, -1)
    diagram = reliability(scores, task)
    assert diagram["weight"] == pytest.approx([ROWS / PARTS] * PARTS, rel=0.02)
    assert diagram["predicted"] == pytest.approx(CHANCES[order, task].mean(1), rel=0.02)
    assert diagram["observed"] == pytest.approx(LABELS[order, task].mean(1), abs=0.02)


@given(st.lists(st.tuples(st.floats(-30, 30), st.floats(0, 1), st.floats(0.01, 10)), min_size=1, max_size=60))
def test_no_sample_is_lost(samples: list[tuple[float, float, float]]) -> None:
    logits, labels, weights = (np.array(column) for column in zip(*samples, strict=True))
    scores = ScoreHistogram(1)
    scores.add(logits[:, None], labels[:, None], weights)
    diagram = {key: np.array(values) for key, values in reliability(scores).items()}
    assert diagram["weight"].sum() == pytest.approx(weights.sum())
    assert (diagram["observed"] * diagram["weight"]).sum() == pytest.approx((labels * weights).sum(), abs=1e-9)
    assert (np.diff(diagram["predicted"]) >= 0.0).all()


RNG = np.random.default_rng(0)
OUTPUTS = RNG.normal(1.0, 0.7, (500, 2)).astype(np.float32)
NUMBERS = np.stack([RNG.normal(3.0, 2.0, 500), RNG.poisson(2.0, 500)], axis=1).astype(np.float32)
LINKS = ("identity", "exp")


def scored(rows, weights=None) -> ScoreHistogram:
    scores = ScoreHistogram(2, links=LINKS)
    scores.add(OUTPUTS[rows], NUMBERS[rows], weights)
    return scores


@pytest.mark.parametrize("task", [0, 1])
def test_they_are_those_of_torchmetrics(task):
    scores = scored(slice(None))
    predicted = torch.from_numpy(OUTPUTS[:, task]).double()
    predicted, labels = (predicted if task == 0 else predicted.exp()), torch.from_numpy(NUMBERS[:, task]).double()
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
    classes = (NUMBERS > 2).astype(np.float32)
    both, alone = ScoreHistogram(2, links=("logistic", "identity")), ScoreHistogram(1)
    both.add(OUTPUTS, np.stack([classes[:, 0], NUMBERS[:, 1]], axis=1))
    alone.add(OUTPUTS[:, :1], classes[:, :1])
    assert (both.auc(), both.log_loss(), both.calibration()) == (alone.auc(), alone.log_loss(), alone.calibration())
    assert both.auc(1) is None
