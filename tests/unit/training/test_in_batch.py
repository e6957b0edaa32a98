"""The softmax over the items of a batch, and the frequency of items, against the paper's formulas."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.model.item_frequency import ItemFrequency
from persia_cli.training.loss import Candidates, in_batch_softmax


def mean_loss(users, items, keys, labels, weights, temperature, log_q=None):
    """Yi et al., equations 3 and 4, in loops: the mean over samples by w_i y_i; None without a positive one.

    With `log_q` each of the other items is in the sum once, as the mean over the candidates that have it.
    """
    total, mass = torch.zeros((), dtype=torch.float64), 0.0
    for i in range(len(keys)):
        if weights[i] * labels[i] == 0:
            continue
        shift = torch.zeros(len(keys), dtype=torch.float64) if log_q is None else log_q
        own = torch.dot(users[i], items[i]) / temperature - shift[i]
        rivals = {}
        for j in range(len(keys)):
            if keys[j] != keys[i] and weights[j] > 0:
                score = torch.dot(users[i], items[j]) / temperature - shift[j]
                rivals.setdefault(int(keys[j]), []).append(score.exp())
        parts = [torch.stack(each).sum() if log_q is None else torch.stack(each).mean() for each in rivals.values()]
        total = total - weights[i] * labels[i] * (own - torch.stack([own.exp(), *parts]).sum().log())
        mass += float(weights[i] * labels[i])
    return total / mass if mass else None


SAMPLE = st.tuples(st.integers(-2, 2), st.sampled_from([0.0, 1.0, 1.0, 0.25]), st.sampled_from([0.0, 1.0, 1.0, 3.5]))


@given(st.lists(SAMPLE, min_size=1, max_size=9), st.integers(0, 2**32 - 1), st.integers(0, 9), st.booleans())
def test_ranks_together_have_the_loss_and_gradient_of_the_formula(samples, seed, cut, corrected):
    keys, labels, weights = (torch.tensor(column) for column in zip(*samples, strict=True))
    draw = torch.Generator().manual_seed(seed)
    users, items = (torch.randn(len(keys), 3, generator=draw) for _ in range(2))
    # An item has one probability, which all candidates with it share.
    log_q = (-3 * torch.rand(5, generator=draw))[keys + 2] if corrected else None
    ours = [each.clone().requires_grad_() for each in (users, items)]
    plain = [each.double().requires_grad_() for each in (users, items)]
    total, cut = float(weights.sum()), min(cut, len(keys))
    parts = [
        in_batch_softmax(ours[0][start:stop], Candidates(ours[1], keys, labels, weights, start), 0.5, log_q).sum()
        for start, stop in ((0, cut), (cut, len(keys)))
    ]
    loss = torch.stack(parts).sum() / (total or 1.0)
    loss.backward()
    expected = mean_loss(*plain, keys, labels.double(), weights.double(), 0.5, log_q)
    if expected is None:
        assert loss.item() == 0.0
        assert not any(each.grad.any() for each in ours)
        return
    if expected.requires_grad:
        expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
    for mine, other in zip(ours, plain, strict=True):
        assert torch.allclose(
            mine.grad.double(), torch.zeros_like(other) if other.grad is None else other.grad, atol=1e-5
        )


def learned_shares(share, corrected):
    """float32 [items]: the softmax of one free score for each item, after batches that draw items by their shares."""
    draw = torch.Generator().manual_seed(0)
    scores = torch.zeros(len(share), 1, requires_grad=True)
    optimizer, frequency, mean = torch.optim.Adam([scores], lr=0.02), ItemFrequency(1024, 0.01), torch.zeros(len(share))
    for step in range(900):
        items = torch.multinomial(share, 64, True, generator=draw)
        frequency.observe(items)
        candidates = Candidates(scores[items], items, torch.ones(64), torch.ones(64))
        log_q = frequency.log_probability(items) if corrected else None
        loss = in_batch_softmax(torch.ones(64, 1), candidates, 1.0, log_q).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean += scores.detach()[:, 0] * (step >= 600) / 300
    return mean.softmax(0)


def test_corrected_scores_learn_how_often_items_are_chosen():
    """The softmax over all items would learn the same; without a correction frequent items have lower scores."""
    share = 1.0 / torch.arange(1, 41)
    share /= share.sum()
    assert 64 * share[0] > 10, "the first item is in a batch many times"
    apart = [float((share * (share / learned_shares(share, corrected)).log()).sum()) for corrected in (True, False)]
    assert apart[0] < 0.02
    assert apart[1] > 0.3


def test_far_scores_are_finite():
    users = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    candidates = Candidates(torch.tensor([[1.0], [-1.0]]), torch.arange(2), torch.ones(2), torch.ones(2))
    losses = in_batch_softmax(users, candidates, 0.1)
    losses.sum().backward()
    assert losses.tolist() == [0.0, 0.0]
    assert users.grad.isfinite().all()


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 4), max_size=6), max_size=12))
def test_gaps_are_those_of_algorithm_2(batches):
    buckets, rate = 7, 0.25
    frequency = ItemFrequency(buckets, rate)
    last, gap = {}, {}
    for step, items in enumerate(batches, 1):
        frequency.observe(torch.tensor(items, dtype=torch.int64))
        for h in {item % buckets for item in items}:
            gap[h] = (1 - rate) * gap[h] + rate * (step - last[h]) if h in last else float(step)
            last[h] = step
    asked = torch.arange(buckets)
    expected = [math.log(1 / gap.get(h, len(batches) + 1)) for h in range(buckets)]
    assert frequency.log_probability(asked).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
