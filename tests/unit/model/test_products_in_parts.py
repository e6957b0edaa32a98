"""The interactions of xDeepFM, computed in parts, are those with all products at once."""

import pytest
import torch

from persia_cli.model import xdeepfm
from persia_cli.model.xdeepfm import CompressedInteractions

FIELDS, DIM, MAPS = 4, 3, (5, 2)


def gradients(values: torch.Tensor, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad((values * torch.arange(1.0, values.shape[1] + 1)).square().sum(), leaves)


@pytest.mark.parametrize("samples", [0, 1, 7])
@pytest.mark.parametrize("at_once", [1, 100], ids=["single-rows", "short-last-part"])
def test_values_and_gradients(at_once: int, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part as a whole is compared with the formula of the paper elsewhere."""
    vectors = torch.randn(samples, FIELDS, DIM, dtype=torch.float64).requires_grad_()
    network = CompressedInteractions(FIELDS, MAPS).double()
    whole = network(vectors)
    monkeypatch.setattr(xdeepfm, "PRODUCTS_AT_ONCE", at_once)
    parts = network(vectors)
    torch.testing.assert_close(parts, whole)
    leaves = [vectors, *network.parameters()]
    for one, other in zip(gradients(parts, *leaves), gradients(whole, *leaves), strict=True):
        torch.testing.assert_close(one, other)


def test_a_step_takes_no_memory_for_all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd saves maps and fields, but no tensor as large as their products."""
    monkeypatch.setattr(xdeepfm, "PRODUCTS_AT_ONCE", 100)
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        CompressedInteractions(FIELDS, MAPS)(torch.randn(50, FIELDS, DIM, requires_grad=True))
    assert 0 < max(kept) <= 50 * DIM * max(FIELDS, *MAPS)
