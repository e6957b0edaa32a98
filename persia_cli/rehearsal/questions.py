"""Questions to torch about networks, in a separate process before a job: each network is built as a rank would.

`python -m persia_cli.rehearsal.questions QUESTION` reads a JSON list of runs from stdin and writes the answer for each.
Prints of a user's network go to stderr.

`refusal`: null, or the sentence with the problem of a network that is tried on its device.
`fit`: the fit of the dense weights from the checkpoint `init_from.path`, or a sentence with its problem.
`summary`: layers, found by running the network on two samples of zeros, and memory, or a sentence with its problem.
"""

import json
import os
import sys
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from persia_cli.config.schema import AsyncMode, Run
from persia_cli.config.schema.init_from import DENSE, OPTIMIZER
from persia_cli.errors import UserError
from persia_cli.model.build import build_model
from persia_cli.model.inputs import ModelBatch
from persia_cli.plan.columns import input_shape
from persia_cli.plan.embedding import embedding_layout
from persia_cli.storage.locations import location_of
from persia_cli.store.checkpoints.manifest import verified_folder
from persia_cli.store.layout import EmbeddingLayout
from persia_cli.training.dense_state import load_fitting
from persia_cli.training.dense_trainer import DenseTrainer
from persia_cli.training.device import device_of
from persia_cli.training.distributed import World
from persia_cli.training.graphs.blocks import step_bytes
from persia_cli.training.graphs.step import SLOTS
from persia_cli.training.graphs.training import reason_against, require_graphs
from persia_cli.training.inputs import group_shapes
from persia_cli.training.loss import Objective
from persia_cli.training.optimizer import dense_optimizer


def refusal(run: Run) -> str | None:
    """Return the reason why the run's network cannot be built, trained by its ranks or put on its device, or None."""
    # Checked before, without torch: compiling takes a minute or two. The network is tried on the CPU, without graphs.
    plain = run.model_copy(update={"train": run.train.model_copy(update={"compile": False, "graphs": "off"})})
    try:
        require_graphs(run, device_of(run, 0))
        trainer = DenseTrainer(plain, World())
        if run.cluster.nn_workers > 1 and not isinstance(run.mode, AsyncMode):
            trainer.rehearse()
    except UserError as error:
        return str(error)
    return None


def fit(run: Run) -> dict[str, Any] | str:
    """Return the initial dense weights of a run, as its ranks will take them, or the problem."""
    assert run.init_from is not None
    assert run.init_from.path is not None
    try:
        module = build_model(run.model, input_shape(run, embedding_layout(run)), run.seed)
        optimizer = dense_optimizer(run.optimizer.dense, module)
        states = OPTIMIZER not in run.init_from.skip and not isinstance(run.mode, AsyncMode)
        return asdict(load_fitting(verified_folder(location_of(run.init_from.path), DENSE), module, optimizer, states))
    except UserError as error:
        return str(error)


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
    parts = [(name, module, count) for name, module in network.named_modules() if (count := _new_weights(module, seen))]
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
            "parameters": count,
        }
        for name, module, count in parts
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


def _new_weights(module: nn.Module, seen: set[nn.Parameter]) -> int:
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
    question = {"refusal": refusal, "fit": fit, "summary": summary}[sys.argv[1]]
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        json.dump([question(Run.model_validate(values)) for values in json.load(sys.stdin)], answers)
