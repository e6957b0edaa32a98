"""Slope and shift of logits are those of the least log loss, and are left out where they would be chance."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from persia_cli.config.schema import BCE, Bce, Bpr, Focal, Loss, Mse
from persia_cli.observe.calibration import MAX_SHIFT, MAX_SLOPE, PENALTY, calibrated, fitted
from persia_cli.observe.scores import ScoreHistogram

Columns = NDArray[np.float64]


def drawn(rng: np.random.Generator, samples: int, slope: float, shift: float) -> tuple[NDArray[np.float32], Columns]:
    """Logits of a model whose true log odds are slope times its logit plus shift, and labels."""
    logits = rng.normal(-1.0, 2.0, samples).astype(np.float32)
    odds = slope * logits.astype(np.float64) + shift
    return logits, (rng.random(samples) < 1.0 / (1.0 + np.exp(-odds))).astype(np.float64)


def histogram(logits: NDArray[np.float32], labels: Columns, weights: Columns | None = None) -> ScoreHistogram:
    found = ScoreHistogram(1)
    found.add(logits[:, None], labels[:, None], weights)
    return found


def mean_loss(numbers: Columns, logits: Columns, labels: Columns, weights: Columns) -> float:
    moved = numbers[0] * logits + numbers[1]
    return float(np.average(labels * np.logaddexp(0, -moved) + (1 - labels) * np.logaddexp(0, moved), weights=weights))


def best_shift(slope: float, logits: Columns, labels: Columns, weights: Columns) -> float:
    """The shift with which the mean prediction is the mean label, by bisection."""
    low, high = (end - slope * logits.mean() for end in (-2e4, 2e4))
    for _ in range(80):
        middle = (low + high) / 2
        odds = np.clip(slope * logits + middle, -700, 700)
        is_low = np.average(1 / (1 + np.exp(-odds)) - labels, weights=weights) < 0
        low, high = (middle, high) if is_low else (low, middle)
    return low


@settings(deadline=None, max_examples=60)
@example(67835, 162, 15.0, 1.0, 0.1, False)  # its best slope is above the bound
@given(
    st.integers(0, 10**6), st.integers(20, 400), st.floats(0.03, 30.0), st.floats(-3.0, 3.0),
    st.sampled_from([0.1, 1.0, 10.0]), st.booleans(),
)  # fmt: skip
def test_it_is_the_optimum(seed: int, samples: int, slope: float, shift: float, scale: float, fractions: bool) -> None:
    """The loss is convex, so numbers that no small step improves are the best.

    None is right where classes are apart, a constant is best, or the loss falls up to the bound of slope or shift.
    """
    rng = np.random.default_rng(seed)
    logits, labels = drawn(rng, samples, slope, shift)
    if fractions:
        labels = labels * 0.9 + 0.05
    logits, weights = logits * np.float32(scale), rng.integers(1, 4, samples).astype(np.float64)
    found = fitted(*histogram(logits, labels, weights).counts())
    whole = logits.astype(np.float64), labels, weights
    if found is None:
        is_apart = logits[labels > 0].min(initial=np.inf) >= logits[labels < 1].max(initial=-np.inf)
        pairs = [(slope, best_shift(slope, *whole)) for slope in [0.0, *np.geomspace(2e-3, MAX_SLOPE, 30)]]
        losses = [mean_loss(np.array(pair), *whole) for pair in pairs]
        least = int(np.argmin(np.array(losses) + 1e-9 * (np.arange(len(losses)) > 0)))
        assert is_apart or least in (0, len(losses) - 1) or abs(pairs[least][1]) > 0.5 * MAX_SHIFT
        return
    assert found[0] > 0.0
    least, z = mean_loss(np.array(found), *whole), np.average(whole[0], weights=weights)
    for size in (1e-4, 1e-2, 1.0):
        for angle in np.linspace(0, 2 * np.pi, 16, endpoint=False):
            by = size * np.cos(angle) / whole[0].std()
            moved = np.array([found[0] + by, found[1] - by * z + size * np.sin(angle)])
            assert mean_loss(moved, *whole) >= least - 1e-12


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        ([0.0, 1.0, 2.0], [1, 1, 1]),
        ([0.0, 1.0, 2.0], [0, 0, 0]),
        ([2.0, 2.0, 2.0], [1, 0, 1]),
        ([-2.0, -1.0, 1.0, 2.0], [0, 0, 1, 1]),
        ([-2.0, 1.0, 1.0, 2.0], [0, 0, 1, 1]),
        ([2.0, 1.0, 0.0, -1.0], [0, 0, 1, 1]),
        ([3.0, 1.0, 0.0, -1.0], [0, 1, 0, 1]),
        ([-np.inf, 1.0, 0.0, np.inf], [1, 0, 1, 0]),
        ([], []),
    ],
    ids=["positive", "negative", "equal", "apart", "nearly apart", "against", "worse than chance", "infinite", "none"],
)
def test_without_a_best_pair_there_is_none(logits: list[float], labels: list[int]) -> None:
    assert fitted(*histogram(np.array(logits, np.float32), np.array(labels, np.float64)).counts()) is None


def test_a_model_without_fault_is_left_alone() -> None:
    """Of 400 perfect models, about one in 100 gains so much by chance."""
    rng = np.random.default_rng(3)
    corrected = sum(bool(calibrated({"y": BCE}, histogram(*drawn(rng, 2000, 1.0, 0.0)), 2000)[0]) for _ in range(400))
    assert corrected <= 12


def test_metrics_are_those_of_the_corrected_logits() -> None:
    logits, labels = drawn(np.random.default_rng(0), 5000, 0.3, -0.2)
    [found], metrics = calibrated({"y": BCE}, histogram(logits, labels), 5000)
    assert (found.label, found.task) == ("y", 0)
    assert abs(found.slope - 0.3) < 0.03
    moved = histogram(logits * np.float32(found.slope) + np.float32(found.shift), labels)
    assert metrics["log_loss"] == found.log_loss[1] == pytest.approx(moved.log_loss(), rel=1e-12)
    assert found.log_loss[0] == histogram(logits, labels).log_loss()
    assert metrics["calibration"] == pytest.approx(moved.calibration(), rel=1e-12)
    assert metrics["accuracy"] == moved.accuracy()
    assert moved.auc() == pytest.approx(histogram(logits, labels).auc(), abs=1e-6)
    assert metrics.keys() == {"log_loss", "ne", "calibration", "accuracy"}


def test_weights_do_not_make_chance_significant() -> None:
    logits, labels = drawn(np.random.default_rng(1), 300, 0.9, 0.0)
    heavy = histogram(logits, labels, np.full(300, 1e6))
    before, numbers = heavy.log_loss(), fitted(*heavy.counts())
    assert before is not None
    assert numbers is not None
    gain = before - mean_loss(np.array(numbers), logits.astype(np.float64), labels, np.ones(300))
    assert gain * 300 < PENALTY < gain * 300 * 1e6
    assert calibrated({"y": BCE}, heavy, 300) == ((), {})


def test_each_label_has_its_own_and_some_losses_none() -> None:
    rng, losses = np.random.default_rng(2), dict[str, Loss]()
    losses["click"], losses["buy"] = BCE, Focal(kind="focal")
    losses["price"], losses["rare"] = Mse(kind="mse"), Bce(kind="bce", pos_weight=5.0)
    losses["liked"] = Bpr(kind="bpr")
    slopes = (0.3, 2.0, 1.0, 0.3, 0.5)
    pairs = [drawn(rng, 4000, slope, 0.5) for slope in slopes]
    scores = ScoreHistogram(5, [loss.LINK for loss in losses.values()])
    scores.add(np.stack([z for z, _ in pairs], 1), np.stack([y for _, y in pairs], 1))
    found, metrics = calibrated(losses, scores, 4000)
    assert [each.label for each in found] == ["click", "buy", "liked"]
    assert [each.slope for each in found] == pytest.approx([0.3, 2.0, 0.5], rel=0.1)
    assert {key for key in metrics if key.startswith("log_loss")} == {
        "log_loss_click", "log_loss_buy", "log_loss_liked"
    }  # fmt: skip


def test_more_logits_than_cells_give_nearly_the_same() -> None:
    logits, labels = drawn(np.random.default_rng(4), 60_000, 0.25, -0.7)
    found = fitted(*histogram(logits, labels).counts())
    assert found is not None
    whole = logits.astype(np.float64), labels, np.ones(len(labels))
    least = mean_loss(np.array(found), *whole)
    for step in ((2e-4, 0.0), (-2e-4, 0.0), (0.0, 2e-4), (0.0, -2e-4)):
        assert mean_loss(np.array(found) + step, *whole) > least
