"""Dense optimizers are torch's, with every setting of the config."""

import pytest
import torch

from persia_cli.config.schema import Adagrad, Adam, Sgd
from persia_cli.errors import ConfigError
from persia_cli.train.optimizer import dense_optimizer

CASES = [
    (Sgd(kind="sgd", lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
    (
        Adagrad(kind="adagrad", lr=0.2, initial_accumulator_value=0.1, eps=1e-3),
        lambda p: torch.optim.Adagrad(p, lr=0.2, initial_accumulator_value=0.1, eps=1e-3),
    ),
    (
        Adam(kind="adam", lr=0.01, beta1=0.8, beta2=0.95, eps=1e-4),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-4),
    ),
]


def trained(make) -> torch.Tensor:
    module = torch.nn.Linear(3, 1)
    torch.nn.init.constant_(module.weight, 0.5)
    torch.nn.init.zeros_(module.bias)
    optimizer = make(module)
    for step in range(4):
        optimizer.zero_grad()
        module(torch.full((2, 3), 0.3 * step + 0.1)).square().sum().backward()
        optimizer.step()
    return module.weight.detach()


@pytest.mark.parametrize(("config", "plain"), CASES, ids=["sgd", "adagrad", "adam"])
def test_it_moves_weights_as_torch_does_to_the_bit(config, plain):
    ours = trained(lambda module: dense_optimizer(config, module))
    assert torch.equal(ours, trained(lambda module: plain(module.parameters())))


def test_frozen_parameters_stay_out():
    module = torch.nn.Linear(3, 1)
    module.bias.requires_grad_(False)
    assert dense_optimizer(CASES[0][0], module).param_groups[0]["params"] == [module.weight]


def test_a_module_with_nothing_to_train_is_refused():
    with pytest.raises(ConfigError, match="no trainable parameter"):
        dense_optimizer(CASES[0][0], torch.nn.Identity())
