"""The interactions of xDeepFM, computed in parts, are those of the formula with all products at once."""

import pytest
import torch

from persia_cli.model import xdeepfm
from persia_cli.model.xdeepfm import CompressedInteractions

FIELDS, DIM, MAPS = 4, 3, (5, 2)


def formula(vectors: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Equations 6 and 7 of the paper, of a whole batch."""
    maps, sums = vectors, []
    for weight in weights:
        own = weight.view(len(weight), maps.shape[1], FIELDS)
        maps = torch.einsum("hij,nid,njd->nhd", own, maps, vectors)
        sums.append(maps.sum(2))
    return torch.cat(sums, 1)


def gradients(values: torch.Tensor, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad((values * torch.arange(1.0, values.shape[1] + 1)).square().sum(), leaves)


@pytest.mark.parametrize("samples", [0, 1, 7])
@pytest.mark.parametrize("at_once", [1, 100, 2**19], ids=["single-rows", "short-last-part", "one-part"])
def test_values_and_gradients(at_once: int, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xdeepfm, "PRODUCTS_AT_ONCE", at_once)
    generator = torch.Generator().manual_seed(samples)
    vectors = torch.randn(samples, FIELDS, DIM, generator=generator, dtype=torch.float64).requires_grad_()
    network = CompressedInteractions(FIELDS, MAPS).double()
    weights = list(network.parameters())
    ours, theirs = network(vectors), formula(vectors, weights)
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(gradients(ours, vectors, *weights), gradients(theirs, vectors, *weights), strict=True):
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


@pytest.mark.parametrize(("why", "near"), [("evaluation", 1e-6), ("autocast", 2**-6)])
def test_computing_in_parts_gives_the_same_result(why: str, near: float) -> None:
    torch.manual_seed(0)
    network, vectors = CompressedInteractions(FIELDS, MAPS), torch.randn(6, FIELDS, DIM)
    trained = network(vectors)
    with torch.set_grad_enabled(why != "evaluation"), torch.autocast("cpu", enabled=why == "autocast"):
        other = network(vectors)
    torch.testing.assert_close(other.float(), trained, rtol=near, atol=near)
