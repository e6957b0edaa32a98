"""The memory of dense weights in a plan equals that of torch."""

import pytest
import torch

from persia_cli.config.schema import Run
from persia_cli.plan.dense import dense_bytes
from persia_cli.train.optimizer import dense_optimizer
from tests.support.runs import SGD, make_run


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam", "adamw"])
def test_it_is_that_of_weights_gradients_and_the_state_of_their_optimizer(kind: str) -> None:
    run: Run = make_run(optimizer={"embedding": SGD, "dense": {"kind": kind, "lr": 0.1}})
    network = torch.nn.Linear(30, 20)
    optimizer = dense_optimizer(run.optimizer.dense, network)
    network(torch.ones(2, 30)).sum().backward()
    optimizer.step()
    weights = list(network.parameters())
    kept = [value for each in optimizer.state.values() for value in each.values() if value.ndim]
    taken = sum(value.nbytes for value in [*weights, *(weight.grad for weight in weights), *kept])
    assert dense_bytes(run.optimizer.dense, sum(weight.numel() for weight in weights)) == taken
