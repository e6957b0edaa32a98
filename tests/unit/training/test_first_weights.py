"""The dense weights that a new run begins with: names and shapes that fit, and the state of their optimizer."""

from pathlib import Path

import pytest
import torch
from torch import nn

from persia_cli.errors import CheckpointError
from persia_cli.training.dense_state import load_fitting, write_files
from tests.support.dense import dense_files

OPTIMIZERS = {
    "adam": lambda module: torch.optim.Adam(module.parameters(), lr=0.1),
    "adagrad": lambda module: torch.optim.Adagrad(module.parameters(), lr=0.1, initial_accumulator_value=0.5),
    "sgd": lambda module: torch.optim.SGD(module.parameters(), lr=0.1),
}


def network(inputs: int = 4, last: str = "head") -> nn.Module:
    module = nn.Module()
    module.first, module.norm = nn.Linear(inputs, 3), nn.BatchNorm1d(3)
    setattr(module, last, nn.Linear(3, 1))
    return module


def step(module: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    torch.manual_seed(seed)
    for weight in module.parameters():
        weight.grad = torch.randn(weight.shape)
    optimizer.step()


def saved(folder: Path, kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    module = network()
    optimizer = OPTIMIZERS[kind](module)
    module.norm.running_mean += 2.0
    step(module, optimizer)
    write_files(dense_files(module, optimizer), folder)
    return module, optimizer


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("states", [True, False])
def test_weights_that_do_not_fit_begin_anew_and_are_listed(tmp_path, kind, states):
    module, optimizer = saved(tmp_path, kind)
    other = network(inputs=5, last="exit")
    drawn = {name: value.clone() for name, value in other.state_dict().items()}
    other_optimizer = OPTIMIZERS[kind](other)
    fit = load_fitting(tmp_path, other, other_optimizer, states)
    assert fit.new == ("first.weight 3x5 (saved: 3x4)", "exit.weight 1x3", "exit.bias 1")
    assert fit.unused == ("head.bias", "head.weight")
    assert {"first.bias", "norm.running_mean", "norm.num_batches_tracked"} < set(fit.taken)
    for name, value in other.state_dict().items():
        assert torch.equal(value, module.state_dict()[name] if name in fit.taken else drawn[name]), name
    # Three parameters are loaded; each has a state if the optimizer has one.
    assert fit.states == (3 if states and kind != "sgd" else 0)
    numbers = {name: number for number, (name, _) in enumerate(other.named_parameters())}
    before = dict(
        zip((name for name, _ in module.named_parameters()), optimizer.state_dict()["state"].values(), strict=False)
    )
    now = other_optimizer.state_dict()["state"]
    if states and kind != "sgd":
        for key, value in before["first.bias"].items():
            assert torch.equal(now[numbers["first.bias"]][key], value)
    step(other, other_optimizer)
    assert all(torch.isfinite(value).all() for value in other.state_dict().values())


def test_the_state_of_another_optimizer_is_not_taken(tmp_path):
    saved(tmp_path, "adam")
    other = network()
    optimizer = OPTIMIZERS["adagrad"](other)
    assert load_fitting(tmp_path, other, optimizer, states=True).states == 0
    assert all((entry["sum"] == 0.5).all() for entry in optimizer.state_dict()["state"].values())


@pytest.mark.parametrize("name", ["dense.safetensors", "dense_optimizer.safetensors"])
def test_a_damaged_file_changes_nothing(tmp_path, name):
    saved(tmp_path, "adam")
    (tmp_path / name).write_bytes(b"nothing")
    other = network()
    drawn = {key: value.clone() for key, value in other.state_dict().items()}
    with pytest.raises(CheckpointError, match="is damaged"):
        load_fitting(tmp_path, other, OPTIMIZERS["adam"](other), states=True)
    assert all(torch.equal(value, drawn[key]) for key, value in other.state_dict().items())
