"""Dropout: the number of dropped values, the unchanged mean, and the same values for a seed."""

import pytest
import torch

from persia_cli.model.dropout import CASES, Dropout, dropped


@pytest.mark.parametrize("share", [1e-6, 1 / CASES, 0.1, 0.25, 0.5, 0.9])
def test_the_share_is_dropped_and_others_are_scaled_to_the_same_mean(share):
    torch.manual_seed(0)
    values = dropped(torch.ones(1_000_003), share)
    kept = values != 0
    assert kept.double().mean().item() == pytest.approx(1 - share, abs=5 * (share / 1_000_003) ** 0.5 + 1 / CASES)
    cases = round(share * CASES)
    assert (values[kept] == CASES / (CASES - cases)).all()
    # Neighbours, which share a draw, are dropped independently of each other.
    for apart in (1, 2, 3):
        both = (~kept[apart:] & ~kept[:-apart]).double().mean().item()
        assert both == pytest.approx((cases / CASES) ** 2, abs=0.002)


def test_nearly_all_may_be_dropped_and_none_is_no_number():
    torch.manual_seed(0)
    values = dropped(torch.ones(4 * CASES), 1 - 1e-9)
    assert set(values.tolist()) <= {0.0, float(CASES)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0, 3), (1,), (5, 7), (2, 3, 4)])
def test_any_shape_has_its_dtype_and_the_gradient_of_its_mask(shape, dtype):
    torch.manual_seed(0)
    values = (torch.rand(shape) + 1).to(dtype).requires_grad_()
    result = dropped(values, 0.5)
    assert (result.shape, result.dtype) == (values.shape, dtype)
    result.sum().backward()
    assert torch.equal(values.grad, torch.where(result != 0, 2.0, 0.0).to(dtype))


def test_a_column_of_a_transposed_batch_is_dropped_like_any_other():
    values = torch.ones(6, 5)
    torch.manual_seed(3)
    straight = dropped(values, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropped(torch.ones(5, 6).T, 0.5), straight)


def test_a_layer_draws_by_the_seed_in_training_only():
    layer, inputs = Dropout(0.5), torch.ones(10, 10)
    torch.manual_seed(1)
    first, second = layer(inputs), layer(inputs)
    torch.manual_seed(1)
    assert torch.equal(layer(inputs), first)
    assert not torch.equal(first, second)
    assert layer.eval()(inputs) is inputs
    assert Dropout(0.0)(inputs) is inputs
