"""Blocks of sasrec, ligr and hstu give what those of RecTools 0.19 gave with the same weights, and their gradients.

`scripts/rectools_golden.py` writes the results. RecTools adds biases of positions in float32, also in such a network.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from persia_cli.model.hstu import TransductionUnit, buckets_of
from persia_cli.model.ligr import GatedBlock
from persia_cli.model.ragged import padded
from persia_cli.model.sasrec import CausalBlock

GOLDEN = Path(__file__).with_name("rectools.npz")
BLOCKS = {
    "sasrec": lambda width, length: CausalBlock(width, 2, 0.0),
    "ligr": lambda width, length: GatedBlock(width, 2, 3 * width, 0.0),
    "hstu": lambda width, length: TransductionUnit(width, 2, length, 0.0),
    "hstu_timed": lambda width, length: TransductionUnit(width, 2, length, 0.0, timed=True),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_outputs_and_gradients_are_those_of_rectools(kind):
    golden = {name: torch.from_numpy(value) for name, value in np.load(GOLDEN).items() if name.startswith(f"{kind}/")}
    rows = golden[f"{kind}/rows"].requires_grad_()
    users, length, width = rows.shape
    block: nn.Module = BLOCKS[kind](width, length).double()
    block.load_state_dict({name.split("/")[2]: value for name, value in golden.items() if "/weight/" in name})
    layout = padded(torch.ones(users, length, dtype=torch.bool))
    if kind == "hstu_timed":
        layout = layout._replace(buckets=[buckets_of(golden["hstu_timed/gaps"])])
    output = block(rows.flatten(0, 1), layout).view_as(rows)
    (output * golden[f"{kind}/factors"]).sum().backward()
    assert torch.allclose(output, golden[f"{kind}/output"], rtol=1e-6, atol=1e-6)
    assert torch.allclose(rows.grad, golden[f"{kind}/gradient"], rtol=1e-6, atol=1e-6)
    for name, weight in block.named_parameters():
        assert torch.allclose(weight.grad, golden[f"{kind}/slope/{name}"], rtol=1e-6, atol=1e-6), name
