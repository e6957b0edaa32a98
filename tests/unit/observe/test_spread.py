"""Quantiles and reliability diagrams, against numpy over the samples themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.observe.scores import PARTS, ScoreHistogram, quantile, reliability

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


@pytest.mark.parametrize("q", [0.0, 0.01, 0.25, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("task", [0, 1])
def test_quantiles(scores: ScoreHistogram, q: float, task: int) -> None:
    expected = np.quantile(CHANCES[:, task], q, method="inverted_cdf")
    assert quantile(scores, q, task) == pytest.approx(expected, rel=1e-3)


def test_the_mean(scores: ScoreHistogram) -> None:
    assert scores.mean_prediction(1) == pytest.approx(CHANCES[:, 1].mean(), rel=1e-12)


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


def test_nothing_has_no_quantile_and_no_parts() -> None:
    nothing = ScoreHistogram(1)
    assert quantile(nothing, 0.5) is None
    assert nothing.mean_prediction() is None
    assert reliability(nothing) == {"predicted": [], "observed": [], "weight": []}
