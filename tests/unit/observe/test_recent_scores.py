"""Scores of the last intervals: those of all of them merged, at a cost that does not grow with their number."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.observe.recent_scores import RecentScores
from persia_cli.observe.scores import ScoreHistogram
from tests import naive_scores

LOGITS = 32
"""Distinct logits of the generated samples, so that every histogram has about as many bins."""


def made_up(number: int) -> tuple[np.ndarray[Any, Any], ...]:
    draw = np.random.default_rng(number)
    logits = (draw.integers(0, LOGITS, 40) / 4 - 4).astype(np.float32)
    return logits, (draw.random(40) < 0.3).astype(np.float64), draw.exponential(1.0, 40)


def scores_of(number: int) -> ScoreHistogram:
    logits, labels, weights = made_up(number)
    scores = ScoreHistogram(1)
    scores.add(logits[:, None], labels[:, None], weights)
    return scores


@given(st.integers(1, 9), st.integers(1, 40))
@settings(deadline=None, max_examples=25)
def test_they_are_those_of_the_last_intervals_whenever_they_are_asked(window, lines):
    recent = RecentScores(1, window)
    for number in range(lines):
        recent.add(scores_of(number))
        last = [made_up(each) for each in range(max(0, number + 1 - window), number + 1)]
        logits, labels, weights = (np.concatenate(column) for column in zip(*last, strict=True))
        together = recent.together()
        assert together.auc() == pytest.approx(naive_scores.auc(logits, labels, weights), abs=1e-12)
        exact = naive_scores.average_precision(logits, labels, weights)
        assert together.average_precision() == pytest.approx(exact, abs=1e-12)
        assert together.accuracy() == pytest.approx(naive_scores.accuracy(logits, labels, weights), abs=1e-12)
        assert together.weight() == pytest.approx(weights.sum(), rel=1e-12)


@given(st.integers(1, 9), st.integers(0, 30), st.integers(1, 20))
@settings(deadline=None, max_examples=25)
def test_restored_scores_continue_with_the_same_bits(window: int, before: int, after: int) -> None:
    recent = RecentScores(1, window)
    for number in range(before):
        recent.add(scores_of(number))
    restored = RecentScores.restored(1, window, recent.encode())
    for number in range(before, before + after):
        recent.add(scores_of(number))
        restored.add(scores_of(number))
        ours, theirs = (each.together().encode() for each in (restored, recent))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(ours, theirs, strict=True))
