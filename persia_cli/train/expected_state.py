"""The tensors that a checkpoint of a run's dense network must have, found by one step of training on zeros.

`python -m persia_cli.train.expected_state` reads a JSON list of runs from stdin and writes, for each, its tensors or
the sentence with its problem. It is a process of its own, since only ranks import torch.
"""

from typing import Any

import torch

from persia_cli.config.schema import AsyncMode, Run
from persia_cli.errors import UserError
from persia_cli.model.build import build_model
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.network import input_shape
from persia_cli.train.optimizer import dense_optimizer
from persia_cli.train.rehearsal import answer
from persia_cli.train.summary import samples_of_zeros


def expected_state(run: Run) -> dict[str, Any] | str:
    """Return `weights` and `states`, each tensor's shape by name, and the optimizer's `kind`; or why there are none.

    States have the names of `persia_cli.train.dense_state.save_dense`. A parameter that gets no gradient has none; with
    `mode=async` no parameter has one, since embedding servers store them.
    """
    try:
        layout = embedding_layout(run)
        shape = input_shape(run, layout)
        network = build_model(run.model, shape, run.seed)
        optimizer = dense_optimizer(run.optimizer.dense, network)
    except UserError as error:
        return str(error)
    if not isinstance(run.mode, AsyncMode):
        network(samples_of_zeros(layout, shape.dense)).sum().backward()
        optimizer.step()
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in network.named_parameters()}
    states = {
        f"{names[parameter]}/{key}": list(value.shape)
        for parameter, entries in optimizer.state.items()
        for key, value in entries.items()
        if isinstance(value, torch.Tensor)
    }
    return {
        "weights": {name: list(value.shape) for name, value in network.state_dict().items()},
        "states": states,
        "kind": type(optimizer).__name__,
    }


if __name__ == "__main__":
    answer(expected_state)
