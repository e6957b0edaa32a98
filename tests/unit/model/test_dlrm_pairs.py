"""DLRM's choice of pairs on a GPU has the gradients of torch's own, to the bit."""

import torch

from persia_cli.config.schema import Dlrm
from persia_cli.model.dlrm import DeepRecommender, _Chosen
from tests.unit.model.batches import shape


def test_gradients_of_pairs_are_those_of_index_select() -> None:
    network = DeepRecommender(shape(), Dlrm(kind="dlrm", dim=4, bottom=(7,), top=(9,)))
    products = torch.randn(5, network.places.numel(), requires_grad=True)
    outer = torch.randn(5, network.pairs.numel())
    expected = torch.autograd.grad(products.index_select(1, network.pairs), products, outer)[0]
    chosen = _Chosen.apply(products, network.pairs, network.places)
    assert torch.equal(chosen, products.index_select(1, network.pairs))
    assert torch.equal(torch.autograd.grad(chosen, products, outer)[0], expected)
