"""bfloat16: the same steps as plain torch under autocast."""

import numpy as np
import pytest
import torch

from persia_cli.training.inputs import Samples
from persia_cli.training.optimizer import dense_optimizer
from persia_cli.wire.messages import GroupRows
from tests.unit.training.batches import SGD, dense_step, inputs, leaves, network, plain_batch, plain_losses

SIZE = 64
ROUNDING = 2.0**-8
"""Greatest relative error of one rounding."""


def plain_gradients(
    plain: torch.nn.Module, batch: Samples, groups: list[GroupRows], dtype: torch.dtype | None
) -> tuple[float, list[np.ndarray], list[np.ndarray]]:
    """Loss, gradients of rows and of weights by torch alone, in this autocast."""
    plain.zero_grad()
    rows = leaves(groups)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        logits = plain(plain_batch(rows, batch, groups))
    loss = plain_losses(logits, batch).mean(1).sum() / batch.weight_totals[0]
    loss.backward()
    return loss.item(), [leaf.grad.numpy() for leaf in rows], [p.grad.clone().numpy() for p in plain.parameters()]


def assert_near(ours: np.ndarray, theirs: np.ndarray, share: float) -> None:
    """Every element is within `share` of the greatest."""
    assert np.abs(ours - theirs).max() <= share * np.abs(theirs).max()


def test_bfloat16_steps_are_those_of_torch_under_autocast():
    """The tolerance is one rounding to bfloat16.

    Both sides round the same numbers at the same places; pooled vectors alone may differ, by an ulp of float32, which
    now and then makes one of them fall to the other side of a rounding.
    """
    ours, plain, exact = dense_step(precision="bfloat16"), network(), network()
    optimizer = dense_optimizer(SGD, plain)
    for step in range(4):
        batch, groups = inputs(step, SIZE)
        result = ours.train(step, batch, groups)
        mine = [weight.grad.clone().numpy() for weight in ours.module.parameters()]
        ours.update()
        loss, rows, weights = plain_gradients(plain, batch, groups, torch.bfloat16)
        optimizer.step()
        share = ROUNDING
        assert result.loss_sum.mean() / batch.weight_totals[0] == pytest.approx(loss, rel=share)
        for got, expected in zip([*result.gradients, *mine], [*rows, *weights], strict=True):
            assert got.dtype == np.float32
            assert_near(got, expected, share)
        if step == 0:
            _, full, _ = plain_gradients(exact, batch, groups, None)
            assert any(
                np.abs(a - b).max() > 1e-4 * np.abs(b).max() for a, b in zip(result.gradients, full, strict=True)
            )
    assert all(weight.dtype == torch.float32 for weight in ours.module.parameters())
