"""Dense weights and optimizer state on disk: back to the bit, or refused."""

import pytest
import torch

from persia_cli.config.schema import DenseAdagrad, DenseAdam, DenseSgd
from persia_cli.errors import CheckpointError, PersiaError
from persia_cli.training.dense_state import OPTIMIZER, WEIGHTS, load_dense, write_files
from persia_cli.training.optimizer import dense_optimizer
from tests.support.dense import dense_files

CONFIGS = [DenseSgd(kind="sgd", lr=0.1), DenseAdagrad(kind="adagrad", lr=0.1), DenseAdam(kind="adam", lr=0.01)]


class Net(torch.nn.Module):
    """A layer, a normalisation with buffers, and tied weights."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.second = torch.nn.Linear(width, width)
        self.tied = torch.nn.Linear(width, width)
        self.tied.weight = self.second.weight

    def forward(self, x):
        return self.tied(self.second(self.norm(self.first(x)).tanh()))


def built(config, seed: int, width: int = 4):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Net(width)
    return module, dense_optimizer(config, module)


def advance(module, optimizer, steps: int) -> None:
    generator = torch.Generator().manual_seed(9)
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(6, 3, generator=generator)).square().sum().backward()
        optimizer.step()


def equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    state = other.state_dict()
    return all(torch.equal(value, state[name]) for name, value in one.state_dict().items())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
@pytest.mark.parametrize("steps", [0, 3])
def test_a_saved_state_continues_identically(tmp_path, config, steps):
    module, optimizer = built(config, seed=1)
    advance(module, optimizer, steps)
    write_files(dense_files(module, optimizer), tmp_path)
    again, restored = built(config, seed=2)
    advance(again, restored, 1)
    load_dense(tmp_path, again, restored)
    assert equal(module, again)
    advance(module, optimizer, 3)
    advance(again, restored, 3)
    assert equal(module, again)
    assert not equal(module, built(config, seed=1)[0])


def test_settings_are_those_of_the_config_not_of_the_file(tmp_path):
    write_files(dense_files(*built(DenseSgd(kind="sgd", lr=0.1), seed=1)), tmp_path)
    module, optimizer = built(DenseSgd(kind="sgd", lr=0.7), seed=1)
    load_dense(tmp_path, module, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.7


@pytest.mark.parametrize("damage", [lambda content: None, lambda content: content[:-5], lambda content: b"x" * 40])
@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER])
def test_a_missing_or_damaged_file_is_named(tmp_path, name, damage):
    module, optimizer = built(CONFIGS[2], seed=1)
    advance(module, optimizer, 1)
    write_files(dense_files(module, optimizer), tmp_path)
    path = tmp_path / name
    content = damage(path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name} is {'missing' if content is None else 'damaged'}"):
        load_dense(tmp_path, module, optimizer)


def test_another_model_is_refused_and_changes_nothing(tmp_path):
    write_files(dense_files(*built(CONFIGS[0], seed=1)), tmp_path)
    module, optimizer = built(CONFIGS[0], seed=2, width=5)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"first.bias \[4\] torch.float32, .* first.bias \[5\] torch.float32"):
        load_dense(tmp_path, module, optimizer)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    smaller = torch.nn.Sequential()
    smaller.first = torch.nn.Linear(3, 4)
    with pytest.raises(CheckpointError, match=r"config's model has no norm\.bias"):
        load_dense(tmp_path, smaller, dense_optimizer(CONFIGS[0], smaller))
    with pytest.raises(CheckpointError, match="asks for Adam"):
        load_dense(tmp_path, *built(CONFIGS[2], seed=1))


def test_state_that_is_no_tensor_cannot_be_saved(tmp_path):
    class Odd(torch.nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

    module = Odd(2, 1)
    with pytest.raises(PersiaError, match="_extra_state"):
        write_files(dense_files(module, dense_optimizer(CONFIGS[0], module)), tmp_path)
