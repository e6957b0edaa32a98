"""The layers of dense networks, found by running them on two samples of zeros, in a separate process.

`python -m persia_cli.rehearsal.summary` reads a JSON list of runs from stdin and writes, for each, its layers and
memory or the sentence with its problem.
"""

from typing import Any

import torch
from torch import nn

from persia_cli.config.schema import AsyncMode, Run
from persia_cli.errors import UserError
from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.plan.columns import input_shape
from persia_cli.plan.embedding import embedding_layout
from persia_cli.rehearsal.refusal import answer
from persia_cli.store.layout import EmbeddingLayout
from persia_cli.training.graphs.blocks import step_bytes
from persia_cli.training.graphs.step import SLOTS
from persia_cli.training.graphs.training import reason_against
from persia_cli.training.inputs import group_shapes
from persia_cli.training.loss import Objective

SAMPLES = 2


def layers(run: Run) -> list[dict[str, Any]]:
    """Return each module of the run's network with its own weights: name, kind, output, number of weights.

    `output` is the shape of its result for a sample, None if that is not a tensor or it was not called. Raise
    UserError if the network does not fit its features.
    """
    layout = embedding_layout(run)
    shape = input_shape(run, layout)
    network = build_model(run.model, shape, run.seed).eval()
    outputs: dict[nn.Module, list[int]] = {}

    def record_output(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            outputs[module] = list(output.shape[1:])

    seen: set[nn.Parameter] = set()  # weights that two modules share are counted once
    parts = [(name, module, own) for name, module in network.named_modules() if (own := _own_weights(module, seen))]
    hooks = [module.register_forward_hook(record_output) for _, module, _ in parts]
    with torch.no_grad():
        network(samples_of_zeros(layout, shape.dense))
    for hook in hooks:
        hook.remove()
    return [
        {
            "layer": name or "(network)",
            "kind": type(module).__name__,
            "output": outputs.get(module),
            "parameters": own,
        }
        for name, module, own in parts
    ]


def graph_bytes(run: Run) -> int | None:
    """Return the memory of a GPU for the batches of steps in flight as graphs; None if steps are not graphs."""
    on_cpu = run.train.device == "cpu" or isinstance(run.mode, AsyncMode)
    if run.train.graphs == "off" or on_cpu or reason_against(run, torch.device("cuda"), Objective(run.losses)):
        return None
    layout = embedding_layout(run)
    shape = input_shape(run, layout)
    # The graph has its own blocks, and each slot others.
    return (1 + SLOTS) * step_bytes(group_shapes(layout), run.train.batch, shape.dense, shape.tasks)


def summary(run: Run) -> dict[str, Any] | str:
    """Return the layers and `graph_bytes`, or the reason why there are none."""
    try:
        return {"layers": layers(run), "graph_bytes": graph_bytes(run)}
    except UserError as error:
        return str(error)


def _own_weights(module: nn.Module, seen: set[nn.Parameter]) -> int:
    new = [weight for weight in module.parameters(recurse=False) if weight not in seen]
    seen.update(new)
    return sum(weight.numel() for weight in new)


def samples_of_zeros(layout: EmbeddingLayout, dense: int) -> ModelBatch:
    """Return samples of zeros, sequences of full length."""
    groups, names, sequences = [], [], {}
    for group in group_shapes(layout):
        pooled = [feature.name for feature in group.features if feature.pooling != "none"]
        groups.append(torch.zeros(SAMPLES, len(pooled), group.dim))
        names.append(pooled)
        for feature in group.features:
            if feature.pooling == "none":
                length = feature.max_length or 1
                values, mask = torch.zeros(SAMPLES, length, group.dim), torch.ones(SAMPLES, length, dtype=torch.bool)
                sequences[feature.name] = values, mask
    return ModelBatch(torch.zeros(SAMPLES, dense), groups, names, sequences)


if __name__ == "__main__":
    answer(summary)
