"""GAUC: against an average of torchmetrics' metrics of single groups, for any distribution of samples."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import binary_auroc

from persia_cli.data.read.ids import NULL_ID
from persia_cli.observe.scores import QueryScores


def made_up(rows: int, groups: int, seed: int = 0, tasks: int = 1, rate: float = 0.3):
    """Ids of groups that differ in their high bits too, logits with ties, labels."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 2**64, groups, dtype=np.uint64)[rng.integers(0, groups, rows)]
    logits = np.round(rng.standard_normal((rows, tasks)), 1).astype(np.float32)
    return ids, logits, (rng.random((rows, tasks)) < rate).astype(np.float32)


def scored(*parts) -> QueryScores:
    scores = QueryScores(parts[0][1].shape[1])
    for part in parts:
        scores.add(*part)
    return scores


def oracle(ids, logits, labels) -> float | None:
    """The definition, group by group."""
    impressions, figures = [], []
    for group in np.unique(ids):
        z, y = logits[ids == group], labels[ids == group]
        if 0 < y.sum() < len(y):
            impressions.append(len(y))
            figures.append(float(binary_auroc(torch.from_numpy(z).double().sigmoid(), torch.from_numpy(y).long())))
    return float(np.average(figures, weights=impressions)) if figures else None


@pytest.mark.parametrize(("rows", "groups", "rate"), [(2_000, 50, 0.3), (500, 300, 0.2), (200, 1, 0.5), (64, 8, 0.02)])
def test_it_is_the_average_over_groups_by_impressions(rows, groups, rate):
    samples = made_up(rows, groups, rate=rate)
    expected = oracle(samples[0], samples[1][:, 0], samples[2][:, 0])
    assert scored(samples).gauc() == pytest.approx(expected, abs=1e-6)


@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 1000), st.lists(st.integers(0, 60), max_size=5))
def test_it_is_the_same_to_the_bit_however_samples_are_spread(rows, groups, seed, cuts):
    ids, logits, labels = made_up(rows, groups, seed, tasks=2)
    shuffled = np.random.default_rng(seed).permutation(rows)
    parts = [
        scored((ids[part], logits[part], labels[part]))
        for part in np.split(shuffled, sorted(min(cut, rows) for cut in cuts))
    ]
    merged = QueryScores(2)
    for part in parts:
        merged.merge_encoded(part.encode())
    whole = scored((ids, logits, labels))
    assert [merged.gauc(task) for task in (0, 1)] == [whole.gauc(task) for task in (0, 1)]


def test_weights_count_as_so_many_samples():
    ids, logits, labels = made_up(300, 20, seed=3)
    weights = np.random.default_rng(4).integers(0, 4, 300).astype(np.float32)
    repeated = np.repeat(np.arange(300), weights.astype(int))
    expected = scored((ids[repeated], logits[repeated], labels[repeated])).gauc()
    assert scored((ids, logits, labels, weights)).gauc() == pytest.approx(expected, rel=1e-12)


def test_samples_without_the_label_do_not_count():
    ids, logits, labels = made_up(600, 40, tasks=2)
    known = np.random.default_rng(1).random(600) < 0.5
    labels[~known, 1] = np.nan
    scores = scored((ids, logits, labels))
    assert scores.gauc(0) == pytest.approx(oracle(ids, logits[:, 0], labels[:, 0]), abs=1e-6)
    assert scores.gauc(1) == pytest.approx(oracle(ids[known], logits[known, 1], labels[known, 1]), abs=1e-6)
    assert scored((ids, logits, np.full_like(labels, np.nan))).gauc() is None


def test_samples_without_a_query_are_left_out():
    ids, logits, labels = made_up(200, 8, seed=5)
    without = np.arange(200) % 3 == 0
    expected = scored((ids[~without], logits[~without], labels[~without])).gauc()
    ids[without] = NULL_ID
    assert scored((ids, logits, labels)).gauc() == expected
    assert scored((ids[without], logits[without], labels[without])).gauc() is None
