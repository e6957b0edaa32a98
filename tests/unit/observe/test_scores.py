"""Scores: metrics against exact ones at any scale, merging and the wire format to the bit, and those of a window."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from persia_cli.errors import PersiaError, WireError
from persia_cli.observe.record_state import RECORD, SCORES, save_scores, scores_in
from persia_cli.observe.scores import EXACT, IN_TRAINING, QUALITY, ScoreHistogram
from persia_cli.wire.job_messages import ScoreCounts
from tests import naive_scores

ERROR = 1e-12


def made_up(rows: int, tasks: int = 1, spread: float = 1.0):
    rng = np.random.default_rng(0)
    logits = (np.log(1 / 3) + spread * rng.standard_normal((rows, tasks))).astype(np.float32)
    labels = (rng.random((rows, tasks)) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return logits, labels


def at_scale(rows: int, scale: float, bias: float):
    """Logits of a model with the same ranking quality at any scale."""
    rng = np.random.default_rng(0)
    signal = rng.standard_normal(rows)
    labels = (rng.random(rows) < 1 / (1 + np.exp(3.0 - 2.0 * signal))).astype(np.float64)
    return (scale * signal + bias).astype(np.float32), labels


def filled(logits, labels, weights=None) -> ScoreHistogram:
    scores = ScoreHistogram(labels.shape[1])
    scores.add(logits, labels, weights)
    return scores


def in_batches(logits, labels, weights=None, size=4096, limit=EXACT) -> ScoreHistogram:
    scores = ScoreHistogram(1, limit=limit)
    for at in range(0, len(logits), size):
        part = slice(at, at + size)
        scores.add(logits[part, None], labels[part, None], None if weights is None else weights[part])
    return scores


def assert_close(scores: ScoreHistogram, logits, labels, weights=None, error=ERROR, precision=ERROR) -> None:
    """Compare the metrics that depend on the order of logits with all samples sorted."""
    w = np.ones(len(logits)) if weights is None else weights
    assert scores.auc() == pytest.approx(naive_scores.auc(logits, labels, w), abs=error)
    exact = naive_scores.average_precision(logits, labels, w)
    assert scores.average_precision() == pytest.approx(exact, abs=precision)
    assert scores.accuracy() == pytest.approx(naive_scores.accuracy(logits, labels, w), abs=1e-12)


def test_logits_of_any_size_are_distinguished():
    assert filled(np.array([[-20.0], [-30.0]]), np.array([[1.0], [0.0]])).auc() == 1.0
    assert filled(np.array([[np.inf], [3e38]]), np.array([[1.0], [0.0]])).auc() == 1.0
    assert filled(np.array([[-np.inf], [-3e38]]), np.array([[1.0], [0.0]])).auc() == 0.0
    assert filled(np.array([[1e-40], [0.0]]), np.array([[1.0], [0.0]])).auc() == 1.0


def narrow(rows: int, spread: float, rate: float):
    """Logits around that of a low base rate, with the positives one deviation higher."""
    draw = np.random.default_rng(1)
    labels = (draw.random(rows) < rate).astype(np.float64)
    return (-9.0 + spread * (draw.standard_normal(rows) + labels)).astype(np.float32), labels


@pytest.mark.parametrize("rate", [1e-2, 1e-4])
@pytest.mark.parametrize("spread", [1e-6, 1e-3, 1.0])
def test_metrics_are_exact_however_narrow_the_logits_and_rare_the_positives(spread, rate):
    logits, labels = narrow(200_000, spread, rate)
    assert_close(in_batches(logits, labels), logits, labels)


@pytest.mark.parametrize("spread", [1e-3, 1.0])
@pytest.mark.parametrize("rate", [0.2, 1e-3])
def test_more_logits_than_the_limit_are_merged_into_close_metrics(spread, rate):
    """The error falls as the limit rises: that of evaluations is 64 times as high as here, and exceeded less."""
    logits, labels = narrow(1_000_000, spread, rate)
    logits += np.float32(9.0)
    logits *= np.float32(1.5)
    scores = in_batches(logits, labels, limit=IN_TRAINING)
    assert len(scores.counts()[0]) <= IN_TRAINING
    assert_close(scores, logits, labels, error=1e-5, precision=1e-4)


@pytest.mark.parametrize("rare", [False, True])
def test_many_parts_merged_are_as_right_as_one(rare):
    logits, labels = at_scale(400_000, 3.0, -4.6)
    if rare:
        labels = (np.arange(len(labels)) % 33_333 == 0).astype(np.float64)
    weights = 10.0 ** np.random.default_rng(6).uniform(-3.0, 3.0, 400_000)
    whole = ScoreHistogram(1)
    for at in range(0, 400_000, 2_000):
        part = slice(at, at + 2_000)
        whole.merge_encoded(in_batches(logits[part], labels[part], weights[part]).encode())
    assert_close(whole, logits, labels, weights)


EXPONENTS = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, -0.0, np.inf, -np.inf, 1e-40, 3e38, -3.0])
SAMPLES = st.lists(
    st.tuples(EXPONENTS, st.sampled_from([0.0, 1.0, 0.5, 0.25]), st.sampled_from([0.0, 1.0, 1.0, 0.125, 7.0])),
    min_size=1,
    max_size=80,
)


@given(SAMPLES, st.integers(1, 20))
@example([(np.inf, 0.0, 1.0), (-np.inf, 1.0, 1.0)], 1)
@settings(deadline=None)
def test_any_samples_are_counted_exactly(samples, size):
    logits, labels, weights = (np.array(column) for column in zip(*samples, strict=True))
    logits = logits.astype(np.float32)
    scores = in_batches(logits, labels, weights, size=size)
    again = ScoreHistogram.decode(1, scores.encode())
    for each in (scores, again):
        metrics = [each.auc(), each.average_precision(), each.accuracy()]
        twins = (naive_scores.auc, naive_scores.average_precision, naive_scores.accuracy)
        assert metrics == [pytest.approx(twin(logits, labels, weights), abs=1e-12) for twin in twins]


def test_metrics_of_probabilities_are_exact():
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


@pytest.mark.parametrize("weighted", [False, True])
def test_a_missing_label_does_not_count_in_its_task(weighted):
    logits, labels = made_up(4000, 2)
    weights = np.random.default_rng(1).random(4000) if weighted else None
    known = np.random.default_rng(2).random(4000) < 0.4
    labels[~known, 1] = np.nan
    scores = filled(logits, labels, weights)
    for task, rows in enumerate((np.ones(4000, bool), known)):
        alone = filled(logits[rows][:, [task]], labels[rows][:, [task]], None if weights is None else weights[rows])
        for name in ("auc", "log_loss", "ne", "calibration", "pr_auc", "accuracy"):
            assert QUALITY[name](scores, task) == pytest.approx(QUALITY[name](alone, 0), rel=1e-12)
        assert scores.weight(task) == pytest.approx(alone.weight(), rel=1e-12)
    nothing = filled(logits, np.full_like(labels, np.nan), weights)
    assert (nothing.weight(1), nothing.auc(1), nothing.log_loss(1)) == (0.0, None, None)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_has_no_auc_and_no_entropy(label):
    scores = filled(np.array([[0.3], [-0.2]]), np.full((2, 1), label))
    assert scores.auc() is None
    assert scores.average_precision() == (1.0 if label else None)
    assert scores.normalized_entropy() is None
    assert scores.log_loss() is not None


def test_infinite_logits_have_no_loss_if_right_and_infinite_loss_if_not():
    logits = np.array([[np.inf], [-np.inf], [0.0]])
    assert filled(logits, np.array([[1.0], [0.0], [1.0]])).log_loss() == pytest.approx(np.log(2) / 3)
    assert filled(logits, np.array([[1.0], [0.5], [1.0]])).log_loss() == np.inf
    wrong = filled(logits, np.array([[1.0], [1.0], [1.0]]), np.array([1.0, 0.0, 1.0]))
    assert wrong.log_loss() == pytest.approx(np.log(2) / 2)
    assert wrong.calibration() == pytest.approx(0.75)


def test_a_prediction_that_is_no_number_is_refused():
    with pytest.raises(PersiaError, match="NaN"):
        ScoreHistogram(1).add(np.array([[np.nan]]), np.array([[1.0]]))


def test_parts_merged_give_the_same_bits_however_they_came():
    logits, labels = made_up(8_192, tasks=2)
    weights = np.random.default_rng(4).random(8_192)
    cuts = [slice(at, at + 1000) for at in range(0, 8_192, 1000)]
    parts = [filled(logits[cut], labels[cut], weights[cut]) for cut in cuts]
    merged, again = ScoreHistogram(2), ScoreHistogram(2)
    for part in parts:
        merged.merge(ScoreHistogram.decode(2, part.encode()))
        again.merge(part)
    assert all(np.array_equal(a, b) for a, b in zip(merged.encode(), again.encode(), strict=True))
    whole = filled(logits, labels, weights)
    assert merged.auc(0) == pytest.approx(whole.auc(0), abs=1e-12)
    assert merged.weight(1) == pytest.approx(whole.weight(1), rel=1e-12)
    assert merged.log_loss(1) == pytest.approx(whole.log_loss(1), rel=1e-12)


@pytest.mark.parametrize("counted", [[2**30, 2**29], [2**30, 2**30], [2**30, 2**34], [2**30], [6, 2**30]])
def test_counts_that_do_not_fit_are_refused(counted):
    with pytest.raises(WireError, match="are not valid"):
        ScoreHistogram.decode(1, ScoreCounts(np.array(counted, np.uint64), np.ones(2), np.zeros((1, 7))))


def test_scores_of_a_checkpoint_have_the_same_bits(tmp_path):
    histograms = [ScoreHistogram(1) for _ in range(12)]
    for number, scores in enumerate(histograms):
        draw = np.random.default_rng(number)
        scores.add(draw.normal(size=(40, 1)), draw.random((40, 1)) < 0.3, draw.exponential(1.0, 40))
    (tmp_path / RECORD).mkdir()
    save_scores(tmp_path, histograms[0], histograms[1:])
    scores, recent = scores_in((tmp_path / RECORD / SCORES).read_bytes(), 1)
    for ours, theirs in zip([scores, *recent], histograms, strict=True):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(ours.encode(), theirs.encode(), strict=True))
