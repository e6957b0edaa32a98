"""The loss: weights, tasks, and parts of ranks that add up."""

import pytest
import torch
from torch.nn import functional

from persia_cli.config.schema import BCE
from persia_cli.train.loss import Objective

PLAIN = Objective([BCE] * 3)


def made_up(size: int = 12, tasks: int = 3):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(size, tasks, generator=generator, requires_grad=True)
    return (
        logits,
        torch.randint(0, 2, (size, tasks), generator=generator).float(),
        torch.rand(size, generator=generator),
    )


def test_without_weights_it_is_the_mean_that_torch_takes():
    logits, labels, _ = made_up()
    loss = PLAIN.part(PLAIN.weighted(logits, labels, None), 12.0)
    assert loss.item() == pytest.approx(functional.binary_cross_entropy_with_logits(logits, labels).item(), rel=1e-6)


def test_with_weights_it_is_the_weighted_mean():
    logits, labels, weights = made_up()
    p = logits.detach().double().sigmoid()
    per_sample = -(labels * p.log() + (1 - labels) * (1 - p).log()).mean(1)
    expected = (per_sample * weights).sum() / weights.sum()
    loss = PLAIN.part(PLAIN.weighted(logits, labels, weights), float(weights.sum()))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


def test_parts_of_ranks_add_up_and_an_empty_one_adds_nothing():
    logits, labels, weights = made_up()
    total = float(weights.sum())
    parts = [slice(0, 6), slice(6, 12), slice(12, 12)]
    losses = [PLAIN.part(PLAIN.weighted(logits[p], labels[p], weights[p]), total) for p in parts]
    assert losses[2].item() == 0.0
    whole = PLAIN.part(PLAIN.weighted(logits, labels, weights), total)
    assert sum(loss.item() for loss in losses) == pytest.approx(whole.item(), rel=1e-6)
    losses[2].backward()
    assert not logits.grad.any()


def test_a_weight_of_two_counts_a_sample_twice():
    logits, labels, _ = made_up(2)
    twice = PLAIN.part(PLAIN.weighted(logits, labels, torch.tensor([2.0, 1.0])), 3.0)
    rows = [0, 0, 1]
    assert twice.item() == pytest.approx(PLAIN.part(PLAIN.weighted(logits[rows], labels[rows], None), 3.0).item())


def test_a_batch_without_weight_has_no_loss_and_no_gradient():
    logits, labels, _ = made_up()
    loss = PLAIN.part(PLAIN.weighted(logits, labels, torch.zeros(12)), 0.0)
    loss.backward()
    assert loss.item() == 0.0
    assert not logits.grad.any()


def test_far_logits_stay_finite():
    logits = torch.tensor([[1e4], [-1e4]])
    labels = torch.tensor([[1.0], [1.0]])
    assert Objective([BCE]).weighted(logits, labels, None).tolist() == [[0.0], [1e4]]
