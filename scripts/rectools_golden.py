"""Results of RecTools' blocks for a unit test: `python -m scripts.rectools_golden`, in an environment with RecTools.

In a new environment: `pip install 'rectools[torch]==0.19.0'`. It writes inputs, weights under our names, outputs, and
the gradients of the sum of outputs times factors, in float64.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from rectools.models.nn.transformers.hstu import STULayer
from rectools.models.nn.transformers.ligr import LiGRLayer
from rectools.models.nn.transformers.net_blocks import PointWiseFeedForward, PreLNTransformerLayer
from torch import nn

GOLDEN = Path(__file__).parent.parent / "tests" / "unit" / "model" / "rectools.npz"
USERS, LENGTH, DIM, HEADS, EXPANSION = 3, 5, 4, 2, 3
ATTENTION = {
    "before": "layer_norm_1",
    "between": "layer_norm_2",
    "attention.project": "multi_head_attn.in_proj_",
    "attention.last": "multi_head_attn.out_proj",
}


def sasrec() -> tuple[nn.Module, dict[str, list[str]]]:
    """Return RecTools' block with the norms first, with the paper's layers: as wide as rows, and with ReLU."""
    block = PreLNTransformerLayer(DIM, HEADS, 0.0)
    block.feed_forward = PointWiseFeedForward(DIM, DIM, 0.0, nn.ReLU())
    names = ATTENTION | {"inner": "feed_forward.ff_linear_1", "outer": "feed_forward.ff_linear_2"}
    return block, {ours: [theirs] for ours, theirs in names.items()}


def ligr() -> tuple[nn.Module, dict[str, list[str]]]:
    """Return RecTools' block."""
    names = ATTENTION | {"attended": "gating_linear_1", "fed": "gating_linear_2", "outer": "feed_forward.ff_linear_2"}
    inner = ["feed_forward.ff_linear_1", "feed_forward.ff_linear_3"]
    return LiGRLayer(DIM, HEADS, 0.0, EXPANSION), {ours: [theirs] for ours, theirs in names.items()} | {"inner": inner}


def hstu(timed: bool = False) -> tuple[nn.Module, dict[str, list[str]]]:
    """Return RecTools' unit, which reads times or not."""
    head = DIM // HEADS
    unit = STULayer(DIM, HEADS, head, head, LENGTH, timed, True, 0.0, 0.0, 1e-6)
    names = {"before": "norm_input", "between": "norm_attn_output", "last": "output_mlp"}
    return unit, {ours: [theirs] for ours, theirs in names.items()}


def run(kind: str, block: nn.Module, rows: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Return the block's output for whole sequences, each element of which sees those up to itself.

    `times` int64 [users, length + 1] are those of the elements, and of what follows the last.
    """
    later = ~torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    if not kind.startswith("hstu"):
        return block(rows, later, None)
    there = torch.ones(USERS, LENGTH, 1, dtype=rows.dtype)
    return block(rows, {"x": torch.ones(USERS, LENGTH), "unix_ts": times}, (~later).int(), there, None)


def main() -> None:
    """Write the file."""
    torch.manual_seed(0)
    found: dict[str, torch.Tensor] = {}
    gaps = torch.from_numpy(np.random.default_rng(0).integers(0, 10 ** np.arange(LENGTH + 1) + 1, (USERS, LENGTH + 1)))
    times = 1_700_000_000 + gaps.cumsum(1)
    found["hstu_timed/gaps"] = times.diff(dim=1).float()
    kinds = {"sasrec": sasrec, "ligr": ligr, "hstu": hstu, "hstu_timed": partial(hstu, timed=True)}
    for kind, build in kinds.items():
        block, names = build()
        block = block.double().eval()
        with torch.no_grad():
            for weight in block.parameters():
                weight.copy_(torch.randn(weight.shape, dtype=torch.float64) * 0.5)
        rows = torch.randn(USERS, LENGTH, DIM, dtype=torch.float64, requires_grad=True)
        factors = torch.randn(USERS, LENGTH, DIM, dtype=torch.float64)
        output = run(kind, block, rows, times)
        (output * factors).sum().backward()
        found |= {f"{kind}/rows": rows, f"{kind}/factors": factors, f"{kind}/output": output}
        found[f"{kind}/gradient"] = rows.grad
        theirs = dict(block.named_parameters())
        for ours, parts in names.items():
            for suffix in ("weight", "bias"):
                # A name that ends so has its suffix without a point.
                given = [f"{part}{'' if part.endswith('_') else '.'}{suffix}" for part in parts]
                if given[0] not in theirs:
                    continue
                found[f"{kind}/weight/{ours}.{suffix}"] = torch.cat([theirs[name] for name in given])
                found[f"{kind}/slope/{ours}.{suffix}"] = torch.cat([theirs[name].grad for name in given])
        if kind.startswith("hstu"):
            # Their matrix is the transpose; their biases of later elements come last, the element's own in the middle.
            weight, bias = theirs["uvqk_proj"], theirs["rel_attn.pos_weights"]
            for part, matrix, own in (("weight", weight, bias), ("slope", weight.grad, bias.grad)):
                found[f"{kind}/{part}/project.weight"] = matrix.T
                found[f"{kind}/{part}/distances"] = own[:LENGTH].flip(0).unsqueeze(1)
        if kind == "hstu_timed":
            found[f"{kind}/weight/times"] = theirs["rel_attn.time_weights"].unsqueeze(1)
            found[f"{kind}/slope/times"] = theirs["rel_attn.time_weights"].grad.unsqueeze(1)
    np.savez_compressed(GOLDEN, **{name: value.detach().numpy() for name, value in found.items()})


if __name__ == "__main__":
    main()
